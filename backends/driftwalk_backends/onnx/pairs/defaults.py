"""Made-up inputs of a graph: what its types, shapes and names say, and numbers for the rest.

Open axes are free: one of a name is the same wherever that name stands, one without a name is known
by its place. Whole numbers that choose rows of a stored table stay inside it; masks hide nothing;
positions count; a past is empty; the state of an RNN is zero; lengths are the length there is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import ProbeError

from ..graph import FLOAT_KINDS, OnnxGraph, Value, branches
from ..reading import CACHE_FLAG

MOST_ELEMENTS = 1 << 27
"""Of all made-up inputs together; a graph that fixes more must be given them."""

_LENGTHS = re.compile(r"seq|len|time|pos|tok|frame", re.IGNORECASE)
_A_LENGTH = re.compile(r"(?:\A|_|\b)(?:len|lens|length|lengths)(?:\Z|_|\b)", re.IGNORECASE)
_STATE = re.compile(r"(?:\A|_|\.)(?:state|hidden|cell|h|c|h0|c0|hx|cx)(?:\Z|_|\.|\d)")
_RECURRENT = {"LSTM": 5, "GRU": 5, "RNN": 5, "DynamicQuantizeLSTM": 5}
"""Operations that take states, and the place of the first; those of an LSTM are the next too."""
_PIXELS = 32
_CHANNELS = (1, 3, 4)
_PASSES_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Expand"}
_TAKES_APART = _PASSES_ON | {"Slice", "Gather", "Split", "Transpose", "Concat"}


@dataclass(frozen=True)
class Sizes:
    """What is open in the inputs of a graph."""

    axes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of open axes: by their name, or by input and place, `x[1]`."""
    fills: Mapping[str, int] = field(default_factory=dict)
    """Numbers that whole inputs are filled with, by the input's name."""

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        return (*sorted(self.axes.items()), *sorted(self.fills.items()))


def axis_key(item: Value, axis: int) -> str:
    """What an open axis goes by; empty for one that the graph fixes."""
    dim = item.shape[axis]
    if isinstance(dim, int) and dim > 0:
        return ""
    return dim if isinstance(dim, str) and dim else f"{item.name}[{axis}]"


@dataclass(frozen=True, eq=False)
class Defaults:
    """Makes the inputs of a graph that nobody gave."""

    label: str
    graph: OnnxGraph
    items: Sequence[Value]
    """The inputs to make up."""
    batch: int
    length: int
    seed: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of some inputs, as the user wants them."""

    def start(self, known: Mapping[str, int]) -> Sizes:
        """The sizes to begin with: `known` ones, else what an axis' name or place says."""
        axes: dict[str, int] = {}
        for item in self.items:
            if item.name in self.shapes:
                continue
            for axis in range(len(item.shape)):
                key = axis_key(item, axis)
                if key and key not in known and key not in axes:
                    axes[key] = self._guess(item, axis)
        return Sizes(axes)

    def arrays(self, sizes: Sizes, known: Mapping[str, int]) -> dict[str, Array]:
        """All inputs to make up, in the graph's order."""
        every = {**known, **sizes.axes}
        shapes = {item.name: self._shape(item, every) for item in self.items}
        elements = sum(math.prod(shape) for shape in shapes.values())
        if elements > MOST_ELEMENTS:
            name = max(shapes, key=lambda one: math.prod(shapes[one]))
            raise ProbeError(
                f"Input {name!r} of {self.label} is {list(shapes[name])}: {elements} elements are "
                f"too many to be made up (at most {MOST_ELEMENTS}). Give it as an array, or open "
                "axes another size (--shape, --batch, --length)."
            )
        longest = self._longest(shapes)
        return {
            item.name: self._made(item, shapes[item.name], sizes.fills.get(item.name), longest)
            for item in self.items
        }

    def _longest(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """What an input that tells a length should say: the longest open axis behind rows."""
        lengths: dict[bool, list[int]] = {True: [], False: []}
        for item in self.items:
            if _A_LENGTH.search(item.name):
                continue
            for axis, size in enumerate(shapes[item.name][1:], 1):
                is_open = item.name in self.shapes or bool(axis_key(item, axis))
                if size and (is_open or axis == 1):
                    lengths[is_open].append(size)
        return max(lengths[True] or lengths[False][:1], default=self.length)

    def _shape(self, item: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
        if item.name in self.shapes:
            return self.shapes[item.name]
        keys = [axis_key(item, axis) for axis in range(len(item.shape))]
        return tuple(sizes[k] if k else int(d) for k, d in zip(keys, item.shape, strict=True))

    def _guess(self, item: Value, axis: int) -> int:
        dim, shape = item.shape[axis], item.shape
        name = dim if isinstance(dim, str) else ""
        if item.name in self._states:
            return self.batch
        if item.kind in FLOAT_KINDS and len(shape) == 4:
            if axis == 2 and isinstance(shape[1], int) and isinstance(shape[3], int):
                return 0 if "past" in name or "past" in item.name else self.length
            if axis > 0 and not _LENGTHS.search(name):
                return 3 if axis == 1 and shape[3] not in _CHANNELS else _PIXELS
        return self.batch if axis == 0 and not _LENGTHS.search(name) else self.length

    def _made(self, item: Value, shape: tuple[int, ...], fill: int | None, longest: int) -> Array:
        if item.is_sequence or item.dtype is None:
            raise ProbeError(
                f"No default can be made for input {item} of {self.label}; give it as an array "
                "(--probe FILE.safetensors, or probe={name: array})."
            )
        # Each input has a generator of its own: giving one of them does not change the others.
        place = [value.name for value in self.graph.inputs].index(item.name)
        rng = np.random.default_rng([self.seed, place])
        dtype, name = item.dtype, item.name.lower()
        floats = dtype.kind == "f"
        if fill is not None:
            return np.full(shape, fill).astype(dtype)
        zero = name == CACHE_FLAG or item.name in self._states or (floats and "mask" in name)
        if zero or "token_type" in name:  # masks of floats are added
            return np.zeros(shape, dtype)
        if floats:
            made: Array = rng.standard_normal(shape).astype(dtype)
            return made
        if "mask" in name:
            return np.ones(shape, dtype)
        if "position" in name and shape:
            return np.broadcast_to(np.arange(shape[-1]), shape).astype(dtype)
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if (bound := rows_chosen(self.graph, item.name)) is not None:
            return rng.integers(0, min(bound, np.iinfo(dtype).max), shape).astype(dtype)
        return np.full(shape, longest if _A_LENGTH.search(name) else 1).astype(dtype)

    @cached_property
    def _states(self) -> frozenset[str]:
        """Inputs of floats that are the first state of an RNN: by where they go, or by name."""
        going = _states_taken(self.graph)
        return frozenset(
            item.name
            for item in self.items
            if item.kind in FLOAT_KINDS
            if item.name in going or (_STATE.search(item.name) and len(self.items) > 1)
        )


def _states_taken(graph: OnnxGraph) -> frozenset[str]:
    """Tensors that are handed to an RNN as its state, in branches too."""
    nodes = list(every_node(graph.proto.graph))
    wanted: set[str] = set()
    for node in reversed(nodes):
        first = _RECURRENT.get(node.op_type)
        if first is not None:
            wanted.update(name for name in node.input[first : first + 2] if name)
        elif node.op_type in _TAKES_APART and not wanted.isdisjoint(node.output):
            wanted.update(node.input[:1])
    return frozenset(wanted)


def every_node(graph: Any) -> Iterator[Any]:
    """All nodes of a graph (onnx.GraphProto), those of branches behind the node they belong to."""
    for node in graph.node:
        yield node
        for inner in branches(node):
            yield from every_node(inner)


def rows_chosen(graph: OnnxGraph, name: str) -> int | None:
    """How many rows the smallest stored table has that an input chooses from; None without one."""
    waiting, seen = [name], {name}
    found: list[int] = []
    while waiting:
        tensor = waiting.pop()
        for node in graph.takers(tensor):
            if node.op == "Gather" and len(node.inputs) > 1 and node.inputs[1] == tensor:
                table = graph.weights.get(node.inputs[0])
                found += table.dims[:1] if table is not None else []
            elif node.op in _PASSES_ON and node.inputs[0] == tensor:
                fresh = [n for n in node.outputs if n not in seen]
                seen.update(fresh)
                waiting += fresh
    return min(found) if found else None
