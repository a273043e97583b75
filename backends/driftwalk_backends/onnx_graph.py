"""Reading an ONNX graph that others made: safely, without its weights, and exposing what is inside.

The file is hostile until proven otherwise: it may be no graph at all, may be cyclic, and may name
weight files anywhere on the disk. Weights that lie beside the graph are never read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from driftwalk.errors import BackendError

FLOATS = {1: "fp32", 10: "fp16", 11: "fp64", 16: "bf16"}
"""onnx.TensorProto.DataType of the float formats a graph may compute in."""

FLOAT_KINDS = ("tensor(float)", "tensor(float16)", "tensor(double)")
"""The same in ONNX Runtime's words, as far as numpy has them."""

CACHE_FLAG = "use_cache_branch"
"""The input by which optimum's merged decoders choose: with a past, or without."""

_EXTERNAL = 1  # onnx.TensorProto.EXTERNAL
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


@dataclass(frozen=True)
class Value:
    """An input or output of the graph; a dimension is a number, or a name for any number."""

    name: str
    kind: str
    """ONNX Runtime's word, `tensor(int64)`; empty where the graph does not say."""
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name!r} {self.kind} [{', '.join(map(str, self.shape))}]"


class OnnxGraph:
    """A graph's nodes in topological order, and who depends on whom."""

    def __init__(self, path: Path, model: Any) -> None:
        self.path = path
        self._model = model
        self.nodes = _sorted(path, [_node(item) for item in model.graph.node])

    @property
    def folder(self) -> Path:
        return self.path.parent

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """What a run must be given; old graphs list their weights among the inputs too."""
        weights = {tensor.name for tensor in self._model.graph.initializer}
        return tuple(_value(v) for v in self._model.graph.input if v.name not in weights)

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(_value(v) for v in self._model.graph.output)

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
        for tensor in self._model.graph.initializer:
            if tensor.data_type in FLOATS:
                count = 1
                for dim in tensor.dims:
                    count *= dim
                sizes[FLOATS[tensor.data_type]] += count
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
        return {tensor.name: tensor for tensor in self._model.graph.initializer}

    def exposing(self, names: Iterable[str]) -> bytes:
        """The graph with some of its tensors as outputs too; weights beside it stay there."""
        from onnx import ValueInfoProto

        outputs = self._model.graph.output
        known, before = {value.name for value in outputs}, len(outputs)
        outputs.extend(ValueInfoProto(name=name) for name in names if name not in known)
        try:
            data: bytes = self._model.SerializeToString()
        finally:
            del outputs[before:]
        return data


def read_graph(path: Path) -> OnnxGraph:
    """Parse and check a graph; anything wrong with the file is told in one line."""
    import onnx

    try:
        with path.open("rb") as file:
            model = onnx.load_model(file, load_external_data=False)
    except OSError as error:
        raise BackendError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except Exception as error:  # protobuf's errors differ from version to version
        raise BackendError(
            f"{str(path)!r} is no ONNX graph: {str(error).splitlines()[0][:200]}. "
            "Was it cut off while it was copied?"
        ) from None
    if not model.graph.node:
        raise BackendError(f"{str(path)!r} is no ONNX graph, or one with no nodes: nothing to run.")
    for tensor in _tensors(model.graph):
        if tensor.data_location == _EXTERNAL:
            _check_external(path, tensor)
    _without_cache_branch(model.graph)
    return OnnxGraph(path, model)


def _check_external(path: Path, tensor: Any) -> None:
    """Weights must lie in the graph's own folder: a graph is no reason to read any other file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    folder = Path(os.path.realpath(path.parent))
    inside = not os.path.isabs(location) and ".." not in Path(location).parts
    target = Path(os.path.realpath(folder / location))
    if not location or "\0" in location or not inside or folder not in target.parents:
        raise BackendError(
            f"{path.name!r} wants the weights {tensor.name[:80]!r} from {location[:200]!r}, which "
            "is not in its own folder. Weights outside it, also through links, are not read: "
            "copy them beside the graph."
        )
    try:
        size = target.stat().st_size
        end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    except (OSError, ValueError):
        raise BackendError(
            f"{path.name!r} wants the weights {tensor.name[:80]!r} from {location[:200]!r}, which "
            "cannot be read. Was the file left behind when the graph was copied?"
        ) from None
    if end > size:
        raise BackendError(
            f"{path.name!r} wants {end} bytes of {location[:200]!r}, which has {size}. "
            "Was it cut off while it was copied?"
        )


def _tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor, in branches and attributes too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in branches(attribute):
                yield from _tensors(inner)


def branches(attribute: Any) -> list[Any]:
    """The graphs inside an attribute: of an `If`, a `Loop`, a `Scan`."""
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _without_cache_branch(graph: Any) -> None:
    """Optimum's merged decoder is one `If` over two decoders: put the one without a past in.

    Tensors inside a branch cannot be exposed. Which branch runs is decided by an input, and
    driftwalk always feeds it `False`, so what is computed stays the same.
    """
    from onnx import helper

    flags = {value.name for value in graph.input if value.name == CACHE_FLAG}
    kept: list[Any] = []
    for node in graph.node:
        if node.op_type != "If" or node.input[0] not in flags:
            kept.append(node)
            continue
        branch = next(a.g for a in node.attribute if a.name == "else_branch")
        graph.initializer.extend(branch.initializer)
        kept += branch.node
        kept += [
            helper.make_node("Identity", [inner.name], [outer])
            for inner, outer in zip(branch.output, node.output, strict=True)
            if inner.name != outer
        ]
    if len(kept) != len(graph.node) or any(n.op_type == "If" for n in graph.node):
        copies = [type(node).FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)


def _node(item: Any) -> Node:
    scopes = next((p.value for p in item.metadata_props if p.key.endswith(".name_scopes")), "")
    inner = [name for a in item.attribute for g in branches(a) for name in _taken(g)]
    return Node(
        item.op_type,
        item.name,
        tuple(dict.fromkeys(name for name in [*item.input, *inner] if name)),
        tuple(item.output),
        scopes if len(scopes) <= _MOST_SCOPE_TEXT else "",
    )


def _taken(graph: Any) -> Iterator[str]:
    """All names a branch uses; those it makes itself have no producer outside, and do no harm."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in branches(attribute):
                yield from _taken(inner)
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


def _value(info: Any) -> Value:
    kind = info.type.tensor_type
    names = {1: "float", 10: "float16", 11: "double", 16: "bfloat16", 7: "int64", 6: "int32"}
    names |= {9: "bool", 2: "uint8", 3: "int8", 5: "int16", 12: "uint32", 13: "uint64"}
    word = f"tensor({names[kind.elem_type]})" if kind.elem_type in names else ""
    dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in kind.shape.dim)
    return Value(info.name, word, dims)
