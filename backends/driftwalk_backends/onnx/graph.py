"""A graph: nodes in topological order, who depends on whom, what goes in and what comes out.

`reading.read_graph` makes one of a file. Weights beside it stay there until they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from .stored import array_of

FLOATS = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16"}
"""onnx.TensorProto.DataType of the float formats a graph may compute in."""
FLOAT_KINDS = ("tensor(float)", "tensor(float16)", "tensor(double)")
"""Tensors of floats, as far as numpy has them, in ONNX Runtime's words."""
_WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
WHOLE_KINDS = ("tensor(bool)", *(f"tensor({word})" for word in _WHOLE))
"""Tensors of whole numbers and flags: outputs alone can be states of a model."""
STEP_KINDS = tuple(f"tensor({word})" for word in ("int8", "uint8", "int16", "uint16", "int32"))
"""Tensors of whole numbers that may stand for floats in steps."""
COPIES = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout", "Transpose"}
"""Operations that hand the numbers of their first input on."""

Arrays = Mapping[str, Array]
"""Tensors by name."""

_NUMPY = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
_NUMPY |= dict(zip(_WHOLE, _WHOLE, strict=True))
_NEVER_FLOAT = {"Shape", "Size", "NonZero", "ArgMax", "ArgMin", "Equal", "Less", "Greater", "Not"}
_NEVER_FLOAT |= {"And", "Or", "Xor", "LessOrEqual", "GreaterOrEqual", "IsNaN", "IsInf", "Constant"}
_NEVER_FLOAT |= {"ConstantOfShape", "QuantizeLinear", "MatMulInteger"}
_MOST_SCOPE_TEXT = 10_000
_FOUR_BITS = (21, 22)
"""onnx.TensorProto.DataType of uint4 and int4."""


@dataclass(frozen=True)
class Value:
    """An input or output of a graph; a dimension is a number, or a name for any number."""

    name: str
    kind: str
    """In ONNX Runtime's words: `tensor(int64)`, `seq(tensor(float))`, ..."""
    shape: tuple[int | str, ...]
    """Empty for a scalar, and where the graph does not say; a dimension may have no name."""

    def __str__(self) -> str:
        return f"{self.name!r} {self.kind} [{', '.join(str(d) or '?' for d in self.shape)}]"

    @property
    def element(self) -> str:
        return self.kind.rpartition("(")[2].rstrip(")")

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Numpy's word for its elements; None for text, and for formats that numpy lacks."""
        return np.dtype(_NUMPY[self.element]) if self.element in _NUMPY else None

    @property
    def is_sequence(self) -> bool:
        return "seq(" in self.kind

    def cast(self, array: Array) -> Array | None:
        """The array in this type; None where its type, its rank or its numbers cannot be meant."""
        if self.dtype is None:  # as it is, or not at all
            return array if self.element in (array.dtype.name, "string") else None
        if not self.is_sequence and len(self.shape) not in (array.ndim, 0):
            return None
        whole = array.dtype.kind in "iub"
        if self.dtype.kind == "f":  # a mask may be wanted as floats; a float is never a token
            fits = array.dtype.kind == "f" or (whole and "mask" in self.name)
            return array.astype(self.dtype) if fits else None
        made: Array = array.astype(self.dtype) if whole else array
        return made if whole and np.array_equal(made, array) else None


def value_of(info: Any) -> Value:
    """From the graph's own description of an input or output."""
    from onnx import TensorProto

    kind, frame = info.type, "{}"
    if kind.HasField("optional_type"):
        kind, frame = kind.optional_type.elem_type, "optional({})"
    if kind.HasField("sequence_type"):
        kind, frame = kind.sequence_type.elem_type, frame.format("seq({})")
    tensor = kind.tensor_type
    words = {number: word.lower() for word, number in TensorProto.DataType.items()}
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim)
    element = words.get(tensor.elem_type, "undefined")
    return Value(info.name, frame.format(f"tensor({element})"), dims)


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: what it takes (inside its branches too), and what it gives."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scopes: str
    """`pkg.torch.onnx.name_scopes`, as it is written."""
    proto: Any
    """The onnx.NodeProto."""


class OnnxGraph:
    """A graph's nodes in topological order, and who depends on whom."""

    def __init__(self, path: Path, proto: Any) -> None:
        self.path = path
        self.proto = proto
        """The onnx.ModelProto; what is not said here is asked there."""
        self.nodes = _sorted(path, [_node(item) for item in proto.graph.node])

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """What a run must be given; old graphs list their weights among the inputs too."""
        return tuple(value_of(v) for v in self.proto.graph.input if v.name not in self.weights)

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(value_of(v) for v in self.proto.graph.output)

    @cached_property
    def weights(self) -> dict[str, Any]:
        """The initialisers by name."""
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def producers(self) -> dict[str, int]:
        """The number of the node that gives a tensor, by the tensor's name."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}

    def maker(self, tensor: str) -> Node | None:
        """The node that gives a tensor; None for inputs and weights."""
        number = self.producers.get(tensor)
        return None if number is None else self.nodes[number]

    def op_of(self, tensor: str) -> str:
        """The operation that makes a tensor; empty for inputs and weights."""
        made = self.maker(tensor)
        return made.op if made else ""

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """The numbers of the nodes that take a tensor, by the tensor's name."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.inputs:
                found.setdefault(name, []).append(i)
        return found

    def takers(self, tensor: str) -> list[Node]:
        """The nodes that take a tensor."""
        return [self.nodes[number] for number in self.consumers.get(tensor, ())]

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

    def depends(self, later: str, earlier: str) -> bool:
        """Whether one tensor is computed from another, by another node."""
        a, b = self.producers.get(later), self.producers.get(earlier)
        if a is None or b is None:
            return b is None
        return a != b and bool(self._ancestors[a] >> b & 1)

    @cached_property
    def floats(self) -> tuple[str, ...]:
        """Tensors that may be states, in topological order; their types are known once run."""
        return tuple(n for n, i in self.producers.items() if self.nodes[i].op not in _NEVER_FLOAT)

    @cached_property
    def dtype(self) -> str:
        """What the graph computes in: the format of most of its float weights."""
        sizes = dict.fromkeys(FLOATS.values(), 0)
        for tensor in self.weights.values():
            if tensor.data_type in FLOATS:
                sizes[FLOATS[tensor.data_type]] += math.prod(tensor.dims)
        return max(sizes, key=lambda name: sizes[name]) if any(sizes.values()) else "fp32"

    @cached_property
    def is_mixed(self) -> bool:
        """Whether it may compute in half precision and in float32: it casts from one to another."""
        halves = (10, 16)  # onnx.TensorProto.DataType of float16 and bfloat16
        return any(
            attribute.name == "to" and attribute.i in halves
            for node in self.nodes
            if node.op == "Cast"
            for attribute in node.proto.attribute
        )

    @cached_property
    def quantised(self) -> bool:
        """Whether some of its matrix products are of whole numbers."""
        words = (
            "quantizeLinear",
            "QuantizeLinear",
            "MatMulInteger",
            "QLinear",
            "MatMulNBits",
            "DynamicQuantize",
        )
        return any(word in node.op for node in self.nodes for word in words)

    @cached_property
    def fuses_int4(self) -> bool:
        """Whether a product has 4-bit weights in blocks behind `DequantizeLinear`.

        ONNX Runtime fuses the two, and computes with inputs rounded to int8.
        """
        return any(
            node.op == "DequantizeLinear"
            and any(a.name == "block_size" and a.i for a in node.proto.attribute)
            and node.inputs[0] in self.weights
            and self.weights[node.inputs[0]].data_type in _FOUR_BITS
            and any(taker.op == "MatMul" for taker in self.takers(node.outputs[0]))
            for node in self.nodes
        )

    def stored(self, name: str) -> Array | None:
        """A weight or a Constant as an array, wherever it is kept; None where there is none."""
        tensor, made = self.weights.get(name), self.maker(name)
        if tensor is None and made is not None and made.op == "Constant":
            tensor = next((a.t for a in made.proto.attribute if a.name == "value"), None)
        if tensor is None:
            return None
        return array_of(tensor, self.path.parent)

    def exposing(self, names: Iterable[str]) -> bytes:
        """The graph with some of its tensors as outputs too; weights beside it stay there."""
        from onnx import ValueInfoProto

        outputs = self.proto.graph.output
        before, inner = len(outputs), set(names) - {value.name for value in outputs}
        outputs.extend(ValueInfoProto(name=name) for name in self.producers if name in inner)
        try:
            data: bytes = self.proto.SerializeToString()
        finally:
            del outputs[before:]
        return data

    def emptied(self, name: str, outputs: Iterable[str]) -> Any:
        """A model with these outputs and nothing else yet, for nodes of this graph."""
        import onnx

        made = onnx.ModelProto(
            ir_version=self.proto.ir_version,
            opset_import=self.proto.opset_import,
            functions=self.proto.functions,
        )
        made.graph.name = name
        made.graph.output.extend(onnx.ValueInfoProto(name=output) for output in outputs)
        return made


def inferred(model: Any) -> Any:
    """The graph of a model with the types and shapes of its tensors, as far as they are known."""
    import onnx

    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # it raises whatever a broken graph makes it raise; to know more only helps
        return onnx.GraphProto()


def branches(node: Any) -> list[Any]:
    """The graphs inside a node: of an `If`, a `Loop`, a `Scan`."""
    found: list[Any] = []
    for attribute in node.attribute:
        found += [attribute.g] if attribute.HasField("g") else []
        found += attribute.graphs
    return found


def uses(node: Any) -> Iterator[str]:
    """What a node takes, inside its branches too; names made there have no producer outside."""
    yield from node.input
    for graph in branches(node):
        for inner in graph.node:
            yield from uses(inner)
        yield from (value.name for value in graph.output)


def _node(item: Any) -> Node:
    scopes = next((p.value for p in item.metadata_props if p.key.endswith(".name_scopes")), "")
    return Node(
        item.op_type,
        item.name,
        tuple(dict.fromkeys(name for name in uses(item) if name)),
        tuple(item.output),
        scopes if len(scopes) <= _MOST_SCOPE_TEXT else "",
        item,
    )


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
