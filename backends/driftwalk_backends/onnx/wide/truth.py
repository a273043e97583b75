"""A graph in float64 on one probe: what honest arithmetic is measured by.

Whether ONNX Runtime has an operation in float64 it says itself: one that it refuses, when the graph
is loaded or when it runs, becomes an island (`widen`), and the graph is made again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ...calls import first_line
from ..graph import FLOATS, OnnxGraph
from ..sessions import quick_session
from ..stored import array_of
from .flat import flat
from .widen import NAME, Known, Widening

MOST_BYTES = 1 << 30
"""Of a graph's float weights in float64: what one file of ONNX can hold, with room to spare."""
_OLDEST = 13
"""The version of ONNX's operations that the rewritten ones are written in."""
_MOST_KINDS = 40
_NARROW = frozenset({"LSTM", "GRU", "RNN", "Resize", "ConvTranspose"})
"""Operations that ONNX Runtime is known not to have in float64: the others, it says itself."""
_NUMBERED = re.compile(rf"{NAME}(\d+)")


class GraphTruth:
    """The float64 run of a graph, made for one feed."""

    def __init__(self, graph: OnnxGraph, feed: Mapping[str, Any]) -> None:
        size = 8 * sum(math.prod(t.dims) for t in graph.weights.values() if t.data_type in FLOATS)
        if size > MOST_BYTES:
            raise BackendError(f"its weights would take {size / 2**30:.1f} GiB in float64")
        self._graph = graph
        self._feed = {name: _wide(array) for name, array in feed.items()}
        self._narrow: set[str] = set(_NARROW)
        self.islands: dict[str, int] = {}
        try:
            self._model = _recent(flat(graph.proto, graph.path.parent, feed))
            _fix_shapes(self._model, feed)
            self._known = self._asked()
        except Exception as error:  # onnx and ONNX Runtime raise what they like
            raise BackendError(first_line(error)) from None

    @property
    def tensors_known(self) -> frozenset[str]:
        return frozenset(n for n in self._known.kinds if self._known.number(n) is not None)

    def tensors(self, names: Collection[str]) -> dict[str, Array]:
        """Some tensors of the graph, as far as it has them and they are floats."""
        wanted = [name for name in dict.fromkeys(names) if name in self.tensors_known]
        for _ in range(_MOST_KINDS):
            widening = Widening(self._model, self._known, self._load, self._narrow)
            try:
                data = widening.made(wanted).SerializeToString()
                session = quick_session(data, self._graph.path.parent)
                taken = {i.name: self._feed[i.name] for i in session.get_inputs()}
                found = session.run(wanted, taken) if wanted else []
            except Exception as error:
                self._take_back(error)
                continue
            self.islands = dict(widening.islands)
            return dict(zip(wanted, map(np.asarray, found), strict=True))
        raise BackendError("too many of its operations cannot run in float64")

    def _take_back(self, error: Exception) -> None:
        """Leave the operation narrow that an error names; else say what the error says."""
        numbers = [int(number) for number in _NUMBERED.findall(str(error))]
        op = self._model.graph.node[numbers[-1]].op_type if numbers else ""
        if not op or op in self._narrow:
            raise BackendError(first_line(error)) from None
        self._narrow.add(op)

    def _load(self, tensor: Any) -> Array:
        return array_of(tensor, self._graph.path.parent)

    def _asked(self) -> Known:
        """The types and shapes of all tensors, from a session of the graph as it is."""
        import onnx

        graph = self._model.graph
        kinds: dict[str, str] = {}
        shapes: dict[str, tuple[int | None, ...]] = {}
        words = {1: "tensor(float)", 10: "tensor(float16)", 11: "tensor(double)"}
        words |= {16: "tensor(bfloat16)"}
        for tensor in graph.initializer:
            kinds[tensor.name] = words.get(tensor.data_type, "whole")
            shapes[tensor.name] = tuple(tensor.dims)
        before = len(graph.output)
        own = {value.name for value in graph.output}
        inner = dict.fromkeys(n for node in graph.node for n in node.output if n and n not in own)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
        try:
            data = self._model.SerializeToString()
        finally:
            del graph.output[before:]
        session = quick_session(data, self._graph.path.parent)
        for value in (*session.get_inputs(), *session.get_outputs()):
            kinds[value.name] = value.type
            if value.shape:  # a scalar has none, nor has what is not known
                shapes[value.name] = tuple(d if isinstance(d, int) else None for d in value.shape)
        return Known(kinds, shapes)


def _fix_shapes(model: Any, feed: Mapping[str, Any]) -> None:
    """Give inputs the shapes that they have here, so that those of other tensors are known."""
    from onnx import helper

    del model.graph.value_info[:]
    for value in model.graph.input:
        array = feed.get(value.name)
        if isinstance(array, np.ndarray) and value.type.HasField("tensor_type"):
            kind = value.type.tensor_type.elem_type
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, array.shape))
    for value in model.graph.output:
        value.ClearField("type")


def _recent(model: Any) -> Any:
    """The model in a version of the operations that rewritten ones can be written in."""
    from onnx import version_converter

    old = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not old or min(old) >= _OLDEST:
        return model
    return version_converter.convert_version(model, _OLDEST)


def _wide(array: Any) -> Any:
    floats = isinstance(array, np.ndarray) and array.dtype.kind == "f"
    return array.astype(np.float64) if floats else array
