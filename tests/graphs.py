"""ONNX graphs as others might hand them over: names stripped, optimised, with a wrong weight."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from torch import nn

from driftwalk.states import Probe
from driftwalk_backends.calls import call
from driftwalk_backends.onnx.exposed import silence
from driftwalk_backends.onnx.file import optimum_export
from driftwalk_backends.onnx.saturation import saturates

HAS_OPTIMUM = bool(find_spec("optimum") and find_spec("optimum.exporters.onnx"))

Change = Callable[[np.ndarray], np.ndarray]


def strip(source: Path, target: Path, keep_ends: bool = True) -> dict[str, str]:
    """Copy a graph without node names, metadata and notes, its tensors numbered; gives old to new.

    With `keep_ends` the graph's inputs and outputs keep their names, as in most real files.
    """
    model = onnx.load(str(source))
    graph = model.graph
    ends = {value.name for value in [*graph.input, *graph.output]} if keep_ends else set()
    names: dict[str, str] = {}

    def number(name: str) -> str:
        if not name or name in ends:
            return name
        return names.setdefault(name, str(len(names)))

    for node in graph.node:
        assert not any(attribute.HasField("g") for attribute in node.attribute)
        node.name = node.doc_string = ""
        del node.metadata_props[:]
        for field in (node.input, node.output):
            renamed = [number(name) for name in field]
            del field[:]
            field.extend(renamed)
    for value in [*graph.initializer, *graph.input, *graph.output]:
        value.name = number(value.name)
        value.doc_string = ""
    del graph.value_info[:]
    del model.metadata_props[:]
    del graph.metadata_props[:]
    graph.name, model.producer_name, model.producer_version = "g", "", ""
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(target))
    return names


def optimise(source: Path, target: Path, level: str = "ORT_ENABLE_EXTENDED") -> Path:
    """ONNX Runtime's own offline optimisation; the result is for this machine."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    target.parent.mkdir(parents=True, exist_ok=True)
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return target


def products(path: Path, scope: str = "") -> list[str]:
    """The nodes that multiply with a stored matrix, by their first output, in order."""
    model = onnx.load(str(path), load_external_data=False)
    stored = {t.name for t in model.graph.initializer if len(t.dims) == 2}
    stored |= {n.output[0] for n in model.graph.node if n.op_type == "Identity"}
    return [
        node.output[0]
        for node in model.graph.node
        if scope in node.name and node.op_type in ("MatMul", "Gemm") and set(node.input) & stored
    ]


def spoil(source: Path, target: Path, product: str, how: Change) -> Path:
    """Copy a graph in which one product, and no other, multiplies with a changed matrix."""
    model = onnx.load(str(source))
    stored = {t.name: t for t in model.graph.initializer if len(t.dims) == 2}
    copies = {n.output[0]: n.input[0] for n in model.graph.node if n.op_type == "Identity"}
    (node,) = (n for n in model.graph.node if product in n.output)
    slot = next(i for i, name in enumerate(node.input) if copies.get(name, name) in stored)
    name = node.input[slot]
    array = how(numpy_helper.to_array(stored[copies.get(name, name)]).copy())
    node.input[slot] = "spoilt"
    model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), "spoilt"))
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(target))
    return target


class _Positional(nn.Module):
    """A model as a tracer takes it: tensors in, one tensor out."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        return call(self.model, dict(zip(self.names, arrays, strict=True)))[0]


def export(model: nn.Module, probe: Probe, folder: Path, dynamo: bool = False) -> Path:
    """A graph that driftwalk did not make: optimum's where it is installed, else torch's own."""
    folder.mkdir(parents=True, exist_ok=True)
    if HAS_OPTIMUM and not dynamo:
        optimum_export(model, folder)
        single = folder / "model.onnx"
        return single if single.exists() else folder
    names, target = list(probe.inputs), folder / "model.onnx"
    arrays = tuple(torch.from_numpy(array.copy()) for array in probe.inputs.values())
    with silence(), torch.no_grad():
        program = torch.onnx.export(
            _Positional(model, names).eval(),
            arrays,
            None if dynamo else str(target),
            dynamo=dynamo,
            input_names=names,
            output_names=["logits"],
            verbose=False,
        )
        if program is not None:
            program.save(str(target))
    return target


class Once(CalibrationDataReader):
    """One feed to calibrate by."""

    def __init__(self, feed: dict[str, np.ndarray]) -> None:
        self._left = iter([feed])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def calibrating(path: Path, probe: Probe) -> dict[str, np.ndarray]:
    """What of a probe a graph takes."""
    taken = {v.name for v in onnx.load(str(path), load_external_data=False).graph.input}
    return {n: np.asarray(a) for n, a in probe.inputs.items() if n in taken}


def in_eight_bits(plain: Path, probe: Probe, target: Path, **options: Any) -> Path:
    """A graph in static int8, as onnxruntime quantises it; no mask of minus infinity is rounded.

    Weights have seven bits where the products of this CPU saturate with eight.
    """
    feed = calibrating(plain, probe)
    whole: dict[str, Any] = {"weight_type": QuantType.QInt8, "activation_type": QuantType.QInt8}
    whole["reduce_range"] = saturates()
    left = {"nodes_to_exclude": masked(plain, feed)}
    with silence():
        quantize_static(str(plain), str(target), Once(feed), **(whole | left | options))
    return target


def masked(path: Path, feed: dict[str, np.ndarray]) -> list[str]:
    """The nodes that make or take a mask of minus infinity: no step of 8 bits is for these."""
    graph = onnx.load(str(path))
    made = [name for node in graph.graph.node for name in node.output if name]
    known = {value.name for value in graph.graph.output}
    graph.graph.output.extend(onnx.ValueInfoProto(name=n) for n in made if n not in known)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(graph.SerializeToString(), options)
    found = zip(session.get_outputs(), session.run(None, feed), strict=True)
    far = {one.name for one, array in found if array.dtype.kind == "f" and np.any(array < -1e30)}
    return [node.name for node in graph.graph.node if far & {*node.input, *node.output}]
