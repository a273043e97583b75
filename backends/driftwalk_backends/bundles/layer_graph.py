"""One layer of an ONNX graph as a graph of its own: from the states before it to its own state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Trace

from ..onnx.exported import Exported
from ..onnx.file import OnnxFile
from ..onnx.graph import uses
from ..onnx.reading import fetch
from ..onnx.runtime import OnnxRuntime
from ..openvino_runtime import OpenVino

_SCOPES = "pkg.torch.onnx.name_scopes"
LARGEST = 1 << 30
"""Bytes of weights inside the file; protobuf ends at two GB, and more lie beside it."""


@dataclass(frozen=True)
class Whole:
    """A whole graph: its file, and which of its tensors is which point's state."""

    path: Path
    tensors: Mapping[str, str]

    @classmethod
    def of(cls, exported: Exported) -> Whole:
        """An export of our own: its states are outputs, by name."""
        return cls(exported.traced, exported.tensors)


# ---- the graph a candidate runs, and what its tensors held ----


@dataclass(frozen=True, eq=False)
class Source:
    """A whole graph, its states as the graph itself has them, and what it is fed."""

    whole: Whole
    states: Mapping[str, Array]
    inputs: Mapping[str, Array]

    def fed(self, name: str, what: str) -> Array:
        """What an input of the layer is to be given: a state, or an input of the whole graph."""
        return self.states[what] if what in self.states else self.inputs[name]


def graph_of(candidate: OnnxRuntime | OnnxFile | OpenVino, trace: Trace, point: str) -> Source:
    """The graph behind a candidate's state at a point."""
    if isinstance(candidate, OnnxFile):
        return _of_others(candidate, trace, point)
    states = {state.point.name: state.array for state in trace}
    return Source(Whole.of(candidate._export(trace.probe)), states, trace.probe.inputs)


def _of_others(candidate: OnnxFile, trace: Trace, point: str) -> Source:
    """A graph that others made: states where they were found, and in the order they lie there."""
    probe, parts = trace.probe, candidate.parts
    found = {one.point.name: one for one in candidate.prepared(probe).found}
    if point not in found:
        raise BackendError(f"The graph has no tensor that is known to be {point}.")
    own, _ = parts.split(found[point].key)
    mine = {name: one.key for name, one in found.items() if parts.split(one.key)[0] is own}
    arrays = candidate.runs.run(probe, mine.values())
    states = {name: arrays[key] for name, key in mine.items()}
    if not np.array_equal(states[point].ravel(), trace[point].ravel(), equal_nan=True):
        raise BackendError(f"The graph has {point} in another order of its axes.")
    feed = next(feed for part, feed in candidate.runs.fed(probe) if part is own)
    tensors = {name: parts.split(key)[1] for name, key in mine.items()}
    return Source(Whole(own.graph.path, tensors), states, feed)


# ---- cut out ----


@dataclass(frozen=True)
class Input:
    """What an input of the layer is in the whole model: a point, or else an input of the graph."""

    what: str
    dtype: str
    """As numpy calls it; a runtime may hand on states narrower than its graph says."""


def write_layer(
    whole: Whole, point: str, states: Mapping[str, Array], file: Path
) -> dict[str, Input]:
    """Write the graph that makes `point`; says what each of its inputs is."""
    import onnx
    from onnx.helper import tensor_dtype_to_np_dtype

    model = onnx.load(str(whole.path), load_external_data=False)
    graph = model.graph
    wanted = whole.tensors.get(point)
    maker = {name: node for node in graph.node for name in node.output}
    if wanted is None or wanted not in maker:
        raise BackendError(f"No node of {whole.path.name} makes the point {point!r}.")
    ends = _ends(whole.tensors, maker, point)
    nodes, loose = _behind(wanted, maker, ends)
    weights = {item.name: item for item in graph.initializer if item.name in loose}
    typed = {
        item.name: item
        for item in (*graph.value_info, *graph.output, *graph.input)
        if item.type.tensor_type.elem_type
    }
    given = [item.name for item in graph.input if item.name in loose and item.name not in weights]
    inputs = {n: ends[n] for n in sorted(loose) if n in ends} | {n: n for n in given}
    described = [typed.get(name) or _described(name, states[what]) for name, what in inputs.items()]
    small = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node for node in graph.node if id(node) in nodes],
            "layer",
            described,
            [typed.get(wanted) or _described(wanted, states[point])],
            list(weights.values()),
        ),
        opset_imports=model.opset_import,
        functions=model.functions,
        ir_version=model.ir_version,
    )
    _keep_to_itself(small.graph.node)
    fetch(whole.path, small.graph.initializer)
    apart = sum(len(tensor.raw_data) for tensor in small.graph.initializer) > LARGEST
    onnx.save(small, str(file), save_as_external_data=apart, location=f"{file.name}.data")
    kinds = [tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type).name for item in described]
    return {name: Input(inputs[name], kind) for name, kind in zip(inputs, kinds, strict=True)}


def _keep_to_itself(nodes: Iterable[Any]) -> None:
    """Exporters write down which files of which machine a node comes from: nobody's business."""
    for node in nodes:
        kept = [item for item in node.metadata_props if item.key == _SCOPES]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
        node.ClearField("doc_string")


def _ends(tensors: Mapping[str, str], maker: Mapping[str, Any], point: str) -> dict[str, str]:
    """Tensors at which the layer begins, and their points; a copy of a state is that state too."""
    ends = {tensor: name for name, tensor in tensors.items() if name != point}
    for tensor, name in list(ends.items()):
        node = maker.get(tensor)
        if node is not None and node.op_type == "Identity" and node.input[0] not in tensors:
            ends.setdefault(node.input[0], name)
    ends.pop(tensors[point], None)
    return ends


def _behind(
    wanted: str, maker: Mapping[str, Any], ends: Mapping[str, str]
) -> tuple[set[int], set[str]]:
    """The nodes that a tensor needs, and the tensors that none of them makes."""
    nodes: set[int] = set()
    loose: set[str] = set()
    waiting = [wanted]
    while waiting:
        name = waiting.pop()
        node = maker.get(name)
        if node is None or name in ends:
            loose.add(name)
        elif id(node) not in nodes:
            nodes.add(id(node))
            waiting += [used for used in uses(node) if used]
    return nodes, loose


def _described(name: str, state: Array) -> Any:
    """A state as an input or output of a graph; the graph itself need not say what it is."""
    from onnx.helper import make_tensor_value_info, np_dtype_to_tensor_dtype

    return make_tensor_value_info(name, np_dtype_to_tensor_dtype(state.dtype), state.shape)
