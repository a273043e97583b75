"""Some nodes of a graph, between tensors that are given and one that comes out.

What a removed node made is given with the value that it had. A tensor that depends on no input of
the graph is stored, not given: the runtime may fold it, or fuse what it finds beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

from ..onnx.graph import OnnxGraph
from .constants import FEW_NUMBERS, MOST_SIZES

Place = tuple[int, str]
"""Of a number inside of a node: which node of a cut, and what the number is called there."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A small graph, and what it is fed."""

    nodes: tuple[Any, ...]
    """onnx.NodeProto, in topological order."""
    stored: Mapping[str, Array]
    given: Mapping[str, Array]
    output: str
    opsets: tuple[tuple[str, int], ...]
    ir_version: int
    invented: frozenset[str] = frozenset()
    """Of the stored and given tensors, those whose numbers are not the model's."""

    def model(self) -> Any:
        """The onnx.ModelProto; it says nothing of the type of what comes out."""
        import onnx
        from onnx import helper, numpy_helper

        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in self.given.items()
        ]
        made = helper.make_model(
            helper.make_graph(
                list(self.nodes),
                "reduced",
                inputs,
                [],
                [numpy_helper.from_array(_plain(a), name) for name, a in self.stored.items()],
            ),
            opset_imports=[helper.make_opsetid(*one) for one in self.opsets],
            ir_version=self.ir_version,
        )
        made.graph.output.append(onnx.ValueInfoProto(name=self.output))
        return made

    @property
    def longest(self) -> int:
        """The most values along one axis."""
        arrays = (*self.stored.values(), *self.given.values())
        return max((n for array in arrays for n in array.shape), default=1)

    @property
    def values(self) -> int:
        """How many numbers it takes in all."""
        return sum(array.size for array in (*self.stored.values(), *self.given.values()))

    @property
    def operations(self) -> tuple[str, ...]:
        """What its nodes do, in order."""
        return tuple(node.op_type for node in self.nodes)

    @property
    def own(self) -> tuple[str, ...]:
        """Stored tensors that hold the model's own numbers."""
        return tuple(n for n, a in self.stored.items() if is_own(a) and n not in self.invented)

    def without(self, gone: str, source: str) -> Cut:
        """The same without the node that makes a tensor; another one stands in its place."""
        nodes = [_renamed(node, gone, source) for node in self.nodes if gone not in node.output]
        used = {name for node in nodes for name in node.input}
        return replace(
            self,
            nodes=tuple(nodes),
            stored={name: array for name, array in self.stored.items() if name in used},
            given={name: array for name, array in self.given.items() if name in used},
        )

    @property
    def constants(self) -> dict[Place, float]:
        """Numbers inside of its nodes, an epsilon for example, also where they are the default."""
        versions = dict(self.opsets)
        return {
            (i, name): value
            for i, node in enumerate(self.nodes)
            for name, value in _float_attributes(node, versions.get(node.domain, 1)).items()
        }

    def with_constants(self, changed: Mapping[Place, float]) -> Cut:
        """The same with other numbers inside of some nodes."""
        own = self.constants
        new = {place: value for place, value in changed.items() if value != own[place]}
        nodes = [
            _told(node, {name: value for (at, name), value in new.items() if at == i})
            for i, node in enumerate(self.nodes)
        ]
        return replace(self, nodes=tuple(nodes))

    def resized(self, number: Callable[[int], int]) -> Cut:
        """With other sizes in what its nodes are told; those of a graph are stored tensors."""
        return self

    def with_values(self, changed: Mapping[str, Array], invented: Collection[str] = ()) -> Cut:
        """The same with other numbers in some stored or given tensors."""
        return replace(
            self,
            stored={name: changed.get(name, array) for name, array in self.stored.items()},
            given={name: changed.get(name, array) for name, array in self.given.items()},
            invented=self.invented | frozenset(invented),
        )


def _float_attributes(node: Any, version: int) -> dict[str, float]:
    """A node's attributes that are numbers with a point, those that it leaves out as well."""
    from onnx import defs

    kinds = defs.OpSchema.AttrType
    found: dict[str, float] = {}
    if defs.has(node.op_type, version, node.domain):
        schema = defs.get_schema(node.op_type, version, node.domain)
        kept = [a for a in schema.attributes.values() if a.type == kinds.FLOAT]
        found = {a.name: float(a.default_value.f) for a in kept if a.default_value.name}
    return found | {a.name: float(a.f) for a in node.attribute if a.type == a.FLOAT}


def _told(node: Any, changed: Mapping[str, float]) -> Any:
    """A node with other numbers as attributes."""
    if not changed:
        return node
    from onnx import helper

    made = type(node)()
    made.CopyFrom(node)
    kept = [one for one in node.attribute if one.name not in changed]
    del made.attribute[:]
    made.attribute.extend([*kept, *(helper.make_attribute(n, v) for n, v in changed.items())])
    return made


def _plain(array: Array) -> Array:
    return np.ascontiguousarray(array) if array.ndim else np.asarray(array)


class Cutting:
    """Makes cuts of one flat graph whose tensors' values are known."""

    def __init__(self, graph: OnnxGraph, values: Mapping[str, Array]) -> None:
        self.graph = graph
        self.values = values
        """Of every tensor, in the type that it has in the graph."""
        proto = graph.proto
        self._opsets = tuple((one.domain, one.version) for one in proto.opset_import)
        self.is_constant = _constants(graph)

    def numbers(self, cut: Cut) -> tuple[int, ...]:
        """Of the nodes of a cut, in order."""
        makers = self.graph.producers
        made = {makers[name] for node in cut.nodes for name in node.output if name in makers}
        return tuple(sorted(made))

    def cut(
        self, nodes: Iterable[int], output: str, given: Mapping[str, Array] | None = None
    ) -> Cut:
        """Of these nodes, those that the output needs; `given` are other values than the known."""
        wanted, loose = self._behind(output, set(nodes))
        stored, fed = {}, {}
        for name in loose:
            array = self.value(name) if not given or name not in given else given[name]
            if self.is_constant(name) or _is_size(array):
                stored[name] = array
            else:
                fed[name] = array
        kept = [node for i, node in enumerate(self.graph.nodes) if i in wanted]
        for node in kept:
            constant = self.graph.stored(node.outputs[0]) if node.op == "Constant" else None
            if constant is not None:
                stored[node.outputs[0]] = constant
        protos = tuple(_bare(n.proto) for n in kept if n.outputs[0] not in stored)
        return Cut(protos, stored, fed, output, self._opsets, max(self.graph.proto.ir_version, 4))

    def value(self, name: str) -> Array:
        known = self.values.get(name)
        array = known if known is not None else self.graph.stored(name)
        if array is None:
            raise KeyError(name)
        return array

    def handed_on(self, cut: Cut, number: int) -> str | None:
        """The input that a node of a cut gives as it is: a mask that takes nothing, a bound that
        nothing reaches. None: it does something, or makes what comes out."""
        (made, *others) = self.graph.nodes[number].outputs
        node = next((one for one in cut.nodes if made in one.output), None)
        if node is None or others or made == cut.output:
            return None
        array = self.value(made)
        for name in filter(None, node.input):
            taken = self.value(name)
            if taken.dtype == array.dtype and np.array_equal(taken, array):
                return str(name)
        return None

    def between(self, output: str, ends: Collection[str], constants: bool = False) -> list[int]:
        """The nodes that a tensor needs, as far as some others, in topological order.

        Those that only make constants are left out, unless they are asked for.
        """
        found: set[int] = set()
        waiting = [output]
        while waiting:
            name = waiting.pop()
            number = self.graph.producers.get(name)
            if number is None or number in found or (name in ends and name != output):
                continue
            if self.is_constant(name) and not constants:
                continue
            found.add(number)
            waiting += self.graph.nodes[number].inputs
        return sorted(found)

    def _behind(self, output: str, among: set[int]) -> tuple[set[int], list[str]]:
        nodes: set[int] = set()
        loose: dict[str, None] = {}
        waiting = [output]
        while waiting:
            name = waiting.pop()
            number = self.graph.producers.get(name)
            if number is not None and number in among:
                if number not in nodes:
                    nodes.add(number)
                    waiting += self.graph.nodes[number].inputs
            elif number is not None or name in self.graph.weights or name in self.values:
                loose[name] = None
        return nodes, list(loose)


def _constants(graph: OnnxGraph) -> Any:
    """Whether a tensor depends on no input of the graph."""
    fed = {value.name for value in graph.inputs}
    varying = set(fed)
    for node in graph.nodes:
        if varying & set(node.inputs):
            varying |= set(node.outputs)
    return lambda name: name not in varying


def _is_size(array: Array) -> bool:
    return array.dtype == np.int64 and array.ndim <= 1 and array.size <= MOST_SIZES


def _renamed(proto: Any, old: str, new: str) -> Any:
    """A node that takes another tensor in the place of one."""
    if old not in proto.input:
        return proto
    node = type(proto)()
    node.CopyFrom(proto)
    node.input[:] = [new if name == old else name for name in proto.input]
    return node


def _bare(proto: Any) -> Any:
    """A node without what exporters write down of the machine it was made on."""
    node = type(proto)()
    node.CopyFrom(proto)
    del node.metadata_props[:]
    node.ClearField("doc_string")
    return node


def recorded(
    graph: OnnxGraph, feed: Mapping[str, Any], wide: Mapping[str, Array]
) -> dict[str, Array]:
    """Every tensor of a graph as written: floats by the float64 run, rounded to their type."""
    from ..onnx.sessions import quick_session

    session = quick_session(graph.exposing(graph.producers), Path(graph.path).parent)
    names = [value.name for value in session.get_outputs()]
    taken = {value.name: feed[value.name] for value in session.get_inputs()}
    plain = dict(zip(names, session.run(names, taken), strict=True))
    values = {n: a for n, a in plain.items() if isinstance(a, np.ndarray)}
    for name, array in wide.items():
        if name in values and values[name].shape == array.shape:
            with np.errstate(over="ignore"):  # what is too large for the graph is infinite in it
                values[name] = array.astype(values[name].dtype)
    return values | {n: np.asarray(a) for n, a in feed.items() if isinstance(a, np.ndarray)}


def is_own(array: Array) -> bool:
    """Whether numbers may be a model's own, and not just a constant of its code."""
    return (
        array.dtype.kind == "f"
        and array.size > FEW_NUMBERS
        and bool((array != array.flat[0]).any())
    )
