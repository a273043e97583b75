"""Peers that read ONNX, and the export that all of them are given."""

from __future__ import annotations

import ast
import copy
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..places import tensors
from .answer import Answer
from .layers import INNER, Recorded, TensorsOnly, outputs, recorded

if TYPE_CHECKING:
    import onnx

ABSOLUTE, RELATIVE = 5e-3, 1e-1
"""From which on `torch.onnx.export(verify=True)` says that an output is not accurate."""
SIDE_BY_SIDE = 1e-5
"""The default atol and rtol of `python -m onnx_diagnostic sbs`."""


def export(module: nn.Module, inputs: Mapping[str, Any]) -> torch.onnx.ONNXProgram:
    """The ONNX export of a module with its own names for the outputs."""
    wrapped = TensorsOnly(module)
    probe = tensors(inputs)
    with torch.no_grad():
        names = list(wrapped(**probe))
        program = torch.onnx.export(
            wrapped, kwargs=probe, dynamo=True, verbose=False, output_names=names
        )
    assert program is not None
    return program


_exported: list[tuple[weakref.ref[nn.Module], list[Any], torch.onnx.ONNXProgram]] = []


def exported(reference: nn.Module, inputs: Mapping[str, Any]) -> torch.onnx.ONNXProgram:
    """The export of a reference; the last one is kept, for many cases have the same reference."""
    asked = [(name, np.shape(value)) for name, value in inputs.items()]
    for known, given, program in _exported:
        if known() is reference and given == asked:
            return program
    program = export(reference, inputs)
    _exported[:] = [(weakref.ref(reference), asked, program)]
    return program


def written(candidate: nn.Module, inputs: Mapping[str, Any], path: Path) -> Path:
    """The graph of a candidate as a file."""
    export(candidate, inputs).save(str(path))
    return path


def feeds_of(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs that a graph takes."""
    probe = {name: tensor.numpy() for name, tensor in tensors(inputs).items()}
    return {value.name: probe[value.name] for value in model.graph.input}


def run_graph(
    graph: Path, inputs: Mapping[str, Any], expected: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A graph's outputs in onnxruntime under the model's names: by name, or else by position."""
    import onnx
    import onnxruntime

    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    feeds = feeds_of(onnx.load(str(graph), load_external_data=False), inputs)
    values = session.run(None, feeds)
    names = [output.name for output in session.get_outputs()]
    if set(names) != set(expected) and len(names) == len(expected):
        names = list(expected)
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def all_tensors(
    reference: nn.Module, inputs: Mapping[str, Any], graph: Path
) -> tuple[Recorded, Recorded]:
    """Every tensor of two graphs as Polygraphy runs them, PyTorch's outputs for the reference's.

    Where the tensors of the two have other names, it is the outputs alone.
    """
    import onnx

    expected = outputs(recorded(reference, inputs))
    own = exported(reference, inputs).model_proto
    model = onnx.load(str(graph))
    if _names(own) != _names(model):
        actual = run_graph(graph, inputs, expected)
        return {n: ("", t) for n, t in expected.items()}, {n: ("", t) for n, t in actual.items()}
    paths = module_paths(model)
    left, right = (
        {name: (paths[name], torch.from_numpy(value)) for name, value in side.items()}
        for side in (_marked(own, inputs), _marked(model, inputs))
    )
    return left | {n: (paths.get(n, ""), t) for n, t in expected.items()}, right


def _names(model: onnx.ModelProto) -> list[str]:
    return sorted(name for node in model.graph.node for name in node.output)


def _marked(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """What Polygraphy's runner of onnxruntime gives with all tensors marked as outputs."""
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx

    marked = ModifyOutputs(copy.deepcopy(model), outputs=constants.MARK_ALL)
    with OnnxrtRunner(SessionFromOnnx(BytesFromOnnx(marked))) as runner:
        values = runner.infer(feeds_of(model, inputs))
        return {name: np.array(value, order="C") for name, value in values.items()}


def module_paths(model: onnx.ModelProto) -> dict[str, str]:
    """The module that a tensor was made in, by the scopes that the exporter wrote on its node."""
    paths = {}
    for node in model.graph.node:
        properties = {p.key: p.value for p in node.metadata_props}
        scopes = ast.literal_eval(properties.get("pkg.torch.onnx.name_scopes", "['', '']"))
        for name in node.output:
            paths[name] = (scopes[-2] if len(scopes) > 1 else "").removeprefix(INNER)
    return paths


def torch_verification(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    """`verify_onnx_program` of the reference's program and the candidate's graph."""
    import onnx_ir
    from torch.onnx.verification import verify_onnx_program

    assert graph is not None
    program = torch.onnx.ONNXProgram(
        onnx_ir.load(graph), exported(reference, inputs).exported_program
    )
    infos = verify_onnx_program(program, kwargs=tensors(inputs))
    program.release()
    for info in infos:
        if info.max_abs_diff >= ABSOLUTE or info.max_rel_diff >= RELATIVE:
            why = f"{info.name}: absolute {info.max_abs_diff:.3g}, relative {info.max_rel_diff:.3g}"
            return Answer("differs", why=why)
    return Answer("same")


def side_by_side(
    reference: nn.Module, inputs: Mapping[str, Any], model: onnx.ModelProto
) -> Iterator[Any]:
    """What `run_aligned` measures for every value that program and graph have in common."""
    from onnx_diagnostic.reference import OnnxruntimeEvaluator
    from onnx_diagnostic.torch_onnx.sbs import run_aligned

    records = run_aligned(
        exported(reference, inputs).exported_program,
        model,
        run_cls=OnnxruntimeEvaluator,
        args=(),
        kwargs=tensors(inputs),
        use_tensor=True,
        atol=SIDE_BY_SIDE,
        rtol=SIDE_BY_SIDE,
        exc=False,
    )
    return (record for record in records if record.err_abs is not None)


def onnx_diagnostic(
    reference: nn.Module,
    candidate: nn.Module | None,
    inputs: Mapping[str, Any],
    graph: Path | None,
) -> Answer:
    """`run_aligned` of the reference's program and the candidate's graph, judged as `sbs` does."""
    import onnx

    assert graph is not None
    model = onnx.load(str(graph))
    compared = 0
    for compared, record in enumerate(side_by_side(reference, inputs, model), 1):  # noqa: B007
        if not (record.err_abs <= SIDE_BY_SIDE and record.err_rel <= SIDE_BY_SIDE):
            why = f"{record.onnx_name}: absolute {record.err_abs:.3g}"
            why += f", relative {record.err_rel:.3g}"
            return Answer("differs", module_paths(model).get(record.onnx_name, ""), why)
    if not compared:
        return Answer("cannot", why="no value has the same name in the program and in the graph")
    return Answer("same")
