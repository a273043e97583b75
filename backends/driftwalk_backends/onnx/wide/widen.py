"""A graph's tensors, casts and constants in float64.

Whole numbers stay what they are: what is rounded to steps (QuantizeLinear and its kin) is rounded
in the truth too, by the steps that the graph declares. An operation that neither ONNX Runtime nor
`rewrites` has in float64 stays an *island*: it takes its tensors as narrow as the graph has them,
and what it gives is widened again. Each limits the truth to its own rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

from ..graph import branches, uses
from .flat import renamed
from .rewrites import REWRITES, Rewriting, Shape

NAME = "driftwalk-wide-"
"""Before the number of the node that a node of the wide graph stands for."""
FLOATS = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(double)": 11, "tensor(bfloat16)": 16}
"""ONNX Runtime's words for tensors of floats, and ONNX's numbers."""
_DOUBLE, _SINGLE, _HALVES = 11, 1, (10, 16)
_KINDS = frozenset(FLOATS.values())
_WHOLE = ("Quantize", "Dequantize", "QLinear", "Integer", "NBits")
"""In the names of operations that round to declared steps: their types are part of that."""
_TYPED = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "EyeLike"}


@dataclass(frozen=True, eq=False)
class Known:
    """What ONNX Runtime says of the tensors of the graph."""

    kinds: Mapping[str, str]
    """Types, in its words."""
    shapes: Mapping[str, Shape]

    def number(self, name: str) -> int | None:
        """ONNX's number of a tensor's float type; None for whatever is none."""
        return FLOATS.get(self.kinds.get(name, ""))


@dataclass(eq=False)
class Widening:
    """One graph on its way to float64."""

    model: Any
    """The flat onnx.ModelProto."""
    known: Known
    load: Callable[[Any], Array]
    """The numbers of a stored tensor, wherever they lie."""
    narrow: Collection[str]
    """Operations that stay islands, since they were seen to fail."""
    islands: Counter[str] = field(default_factory=Counter)
    _casts: dict[tuple[str, int], str] = field(default_factory=dict)
    _tensors: dict[str, Any] = field(default_factory=dict)

    def made(self, outputs: Collection[str]) -> Any:
        """The graph in float64, with these tensors as its outputs."""
        import onnx

        source = self.model.graph
        wide = onnx.ModelProto(
            ir_version=max(self.model.ir_version, 4), opset_import=self.model.opset_import
        )
        wide.graph.name = "wide"
        stored = {tensor.name for tensor in source.initializer}
        for value in source.input:
            if value.name not in stored:
                wide.graph.input.append(value)
                kind = wide.graph.input[-1].type.tensor_type
                if kind.elem_type in _KINDS:
                    kind.elem_type = _DOUBLE
        self._tensors = {tensor.name: tensor for tensor in source.initializer}
        for node in source.node:
            if node.op_type == "Constant":
                values = [a.t for a in node.attribute if a.name == "value"]
                self._tensors |= dict(zip(node.output, values, strict=False))
        wide.graph.initializer.extend(map(self._stored, source.initializer))
        for number, node in enumerate(source.node):
            nodes, more = self._nodes(node, f"{NAME}{number}")
            for place, made in enumerate(nodes):
                made.name = f"{NAME}{number}/{place}"
            wide.graph.node.extend(nodes)
            wide.graph.initializer.extend(more)
        wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return wide

    def _stored(self, tensor: Any) -> Any:
        from onnx import numpy_helper

        if tensor.data_type in _KINDS:
            with np.errstate(invalid="ignore"):  # a NaN of a broken file may be a signalling one
                array = self.load(tensor).astype(np.float64)
            return numpy_helper.from_array(array, tensor.name)
        if tensor.external_data:
            return numpy_helper.from_array(self.load(tensor), tensor.name)
        return tensor

    def _nodes(self, item: Any, name: str) -> tuple[list[Any], list[Any]]:
        """What stands for one node: nodes, and stored tensors."""
        import onnx

        node = onnx.NodeProto()
        node.CopyFrom(item)
        floats = any(self.known.number(t) is not None for t in (*uses(node), *node.output))
        if not floats:
            return [node], []
        if node.op_type in ("Cast", "Constant", "ConstantOfShape") or node.op_type in _TYPED:
            return [self._retyped(node)], []
        if self._stays(node):
            return self._island(node)
        rewrite = None if node.domain else REWRITES.get(node.op_type)
        if rewrite is None:
            return [node], []
        opset = next(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))
        new = Rewriting(node, name, opset, self.known.shapes.get)
        given = rewrite(new)
        if given is None:
            return self._island(node)
        last = onnx.helper.make_node("Identity", [given], [node.output[0]])
        return [*new.nodes, last], new.stored

    def _stays(self, node: Any) -> bool:
        rounds = any(word in node.op_type for word in _WHOLE)
        return rounds or node.op_type in self.narrow or bool(branches(node))

    def _retyped(self, node: Any) -> Any:
        """A node whose attributes say what type it gives."""
        from onnx import numpy_helper

        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in _KINDS:
                attribute.i = _DOUBLE
            elif attribute.name == "value" and attribute.t.data_type in _KINDS:
                array = self.load(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(array))
            elif attribute.name in ("value_float", "value_floats"):
                many = attribute.name == "value_floats"
                array = np.array(attribute.floats if many else attribute.f, np.float64)
                attribute.Clear()
                attribute.name, attribute.type = "value", 4
                attribute.t.CopyFrom(numpy_helper.from_array(array))
        return node

    def _island(self, node: Any) -> tuple[list[Any], list[Any]]:
        """A node as narrow as it was, between casts; what it has stored stays stored."""
        from onnx import helper, numpy_helper

        before, after, stored = [], [], []
        self.islands[node.op_type] += 1
        rounds = any(word in node.op_type for word in _WHOLE)
        names: dict[str, str] = {}
        for tensor in dict.fromkeys(uses(node)):
            kind = self.known.number(tensor)
            if kind is None or kind == _DOUBLE:
                continue
            target = _SINGLE if kind in _HALVES and not rounds else kind
            key = tensor, target
            if key not in self._casts:
                made = self._casts[key] = f"{tensor}/narrow {target}"
                own = self._tensors.get(tensor)
                if own is not None and target in (own.data_type, _SINGLE):
                    array = self.load(own)
                    array = array.astype(np.float32) if target == _SINGLE else array
                    stored.append(numpy_helper.from_array(array, made))
                else:
                    before.append(helper.make_node("Cast", [tensor], [made], to=target))
            names[tensor] = self._casts[key]
        renamed(node, names)
        for place, tensor in enumerate(node.output):
            if self.known.number(tensor) is not None:
                node.output[place] = f"{tensor}/island"
                ends = [node.output[place]], [tensor]
                after.append(helper.make_node("Cast", *ends, to=_DOUBLE))
        return [*before, node, *after], stored
