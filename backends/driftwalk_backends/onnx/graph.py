"""A graph: its nodes in topological order, who depends on whom, and exposing what is inside.

`reading.read_graph` makes one of a file. Weights beside it stay there until they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from driftwalk.errors import BackendError

from .values import Value, value_of

FLOATS = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16"}
"""onnx.TensorProto.DataType of the float formats a graph may compute in."""

_NEVER_FLOAT = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Equal", "Less", "Greater", "Not"}
_NEVER_FLOAT |= {"And", "Or", "Xor", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf", "Constant"}
_NEVER_FLOAT |= {"ConstantOfShape", "QuantizeLinear", "MatMulInteger"}
_MOST_SCOPE_TEXT = 10_000


@dataclass(frozen=True)
class Node:
    """One operation: what it takes (inside its branches too), what it gives, and its names."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scopes: str = ""
    """`pkg.torch.onnx.name_scopes`, as it is written."""


class OnnxGraph:
    """A graph's nodes in topological order, and who depends on whom."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.proto = proto
        """The onnx.ModelProto; what is not said here is asked there."""
        self.nodes = _sorted(path, [_node(item) for item in proto.graph.node])

    @property
    def folder(self) -> Path:
        return self.path.parent

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """What a run must be given; old graphs list their weights among the inputs too."""
        weights = {tensor.name for tensor in self.proto.graph.initializer}
        return tuple(value_of(v) for v in self.proto.graph.input if v.name not in weights)

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(value_of(v) for v in self.proto.graph.output)

    @cached_property
    def producers(self) -> dict[str, int]:
        """The node that gives a tensor, by the tensor's name."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.inputs:
                found.setdefault(name, []).append(i)
        return found

    @cached_property
    def _ancestors(self) -> list[int]:
        """Per node, the set of nodes it depends on, itself included, as the bits of a number."""
        sets: list[int] = []
        for i, node in enumerate(self.nodes):
            bits = 1 << i
            for name in node.inputs:
                if name in self.producers:
                    bits |= sets[self.producers[name]]
            sets.append(bits)
        return sets

    def op_of(self, tensor: str) -> str:
        """The operation that makes a tensor."""
        return self.nodes[self.producers[tensor]].op

    def depends(self, later: str, earlier: str) -> bool:
        """Whether one tensor is computed from another, by another node."""
        a, b = self.producers.get(later), self.producers.get(earlier)
        if a is None or b is None:
            return b is None
        return a != b and bool(self._ancestors[a] >> b & 1)

    @cached_property
    def floats(self) -> tuple[str, ...]:
        """Tensors that may be states, in topological order; their types are known once run."""
        return tuple(
            name
            for node in self.nodes
            if node.op not in _NEVER_FLOAT
            for name in node.outputs
            if name
        )

    @cached_property
    def dtype(self) -> str:
        """What the graph computes in: the format of most of its float weights."""
        sizes = dict.fromkeys(FLOATS.values(), 0)
        for tensor in self.proto.graph.initializer:
            if tensor.data_type in FLOATS:
                sizes[FLOATS[tensor.data_type]] += math.prod(tensor.dims)
        return max(sizes, key=lambda name: sizes[name]) if any(sizes.values()) else "fp32"

    @cached_property
    def quantised(self) -> bool:
        """Whether some of its matrix products are of whole numbers."""
        words = ("QuantizeLinear", "MatMulInteger", "QLinear", "MatMulNBits", "DynamicQuantize")
        return any(word in node.op for node in self.nodes for word in words)

    def stored(self, name: str) -> Any:
        """A weight as an array, wherever it is kept; None where there is none of that name."""
        from onnx import numpy_helper

        if name not in self._weights:
            return None
        return numpy_helper.to_array(self._weights[name], str(self.folder.resolve()))

    @cached_property
    def _weights(self) -> dict[str, Any]:
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    def exposing(self, names: Iterable[str]) -> bytes:
        """The graph with some of its tensors as outputs too; weights beside it stay there."""
        from onnx import ValueInfoProto

        outputs = self.proto.graph.output
        known, before = {value.name for value in outputs}, len(outputs)
        outputs.extend(ValueInfoProto(name=name) for name in names if name not in known)
        try:
            data: bytes = self.proto.SerializeToString()
        finally:
            del outputs[before:]
        return data


def branches(attribute: Any) -> list[Any]:
    """The graphs inside an attribute: of an `If`, a `Loop`, a `Scan`."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _node(item: Any) -> Node:
    scopes = next((p.value for p in item.metadata_props if p.key.endswith(".name_scopes")), "")
    return Node(
        item.op_type,
        item.name,
        tuple(dict.fromkeys(name for name in uses(item) if name)),
        tuple(item.output),
        scopes if len(scopes) <= _MOST_SCOPE_TEXT else "",
    )


def uses(node: Any) -> Iterator[str]:
    """What a node takes, inside its branches too; names made there have no producer outside."""
    yield from node.input
    for attribute in node.attribute:
        for graph in branches(attribute):
            for inner in graph.node:
                yield from uses(inner)
            yield from (value.name for value in graph.output)


def _sorted(path: Path, nodes: list[Node]) -> tuple[Node, ...]:
    """As they stand where that is an order; else put in order, or refused as a circle."""
    made = {name: i for i, node in enumerate(nodes) for name in node.outputs if name}
    needs = [{made[name] for name in node.inputs if name in made} for node in nodes]
    if all(max(need, default=-1) < i for i, need in enumerate(needs)):
        return tuple(nodes)
    done: dict[int, None] = {}
    waiting: Mapping[int, set[int]] = dict(enumerate(needs))
    while waiting:
        ready = [i for i, need in waiting.items() if need <= done.keys()]
        if not ready:
            raise BackendError(f"{str(path)!r}: {len(waiting)} of its nodes depend on each other.")
        done |= dict.fromkeys(ready)
        waiting = {i: need for i, need in waiting.items() if i not in done}
    return tuple(nodes[i] for i in done)
