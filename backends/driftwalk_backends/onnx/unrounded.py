"""A quantised graph with nothing rounded: what it computes, and whether that is the model.

    QuantizeLinear      x / step + zero: a fraction, and cut off at zero where its numbers end there
    DequantizeLinear    (number - zero) * step
    stored numbers      the model's own, where they are a rounding of these; else as they are

A step by which one operation rounds and another one reads stays in both, so that they must agree.
Quantisers leave out activations that cut off (Relu, Clip), as the numbers end there anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.formats import Cut

from ..constants import FEW_BITS, FLOAT32_SLACK, UNROUNDED_APART, UNROUNDED_SAMPLE
from ..formats.rounded import RoundedWeight, grid_of
from .graph import OnnxGraph
from .quantised import UnreadError, in_blocks
from .unfused import unfused

_MOVES = {"Gather", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice"}
"""Operations that hand on numbers of their first input, whatever these are."""
_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_ROUNDS = ("Quant", "Integer", "QLinear", "NBits", "QAttention", "QGemm")


class OwnNumbers:
    """The parameters and buffers of modules, to be found by a rounding of theirs."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        tensors = [t for one in modules for t in (*one.parameters(), *one.buffers())]
        arrays = [t.detach().numpy() for t in tensors if t.is_floating_point()]
        self._by_shape: dict[tuple[int, ...], list[Array]] = {}
        for one in (*arrays, *(a.T for a in arrays if a.ndim == 2)):
            self._by_shape.setdefault(one.shape, []).append(one)

    def of(self, stored: RoundedWeight) -> Array | None:
        """What it is a rounding of; None where that is nothing of the model's."""
        alike = self._by_shape.get(stored.numbers.shape, [])
        if not alike or not stored.numbers.size:
            return None
        values = stored.values
        some = np.linspace(0, values.size - 1, min(UNROUNDED_SAMPLE, values.size)).astype(int)
        seen, steps = values.ravel()[some], float(np.max(np.abs(stored.step)))
        gaps = np.asarray(stored.grid.spacing(stored.numbers.astype(np.float64)))
        near = steps * float(gaps.max())
        apart = [float(np.linalg.norm(seen - one.ravel()[some])) for one in alike]
        for off, own in sorted(zip(apart, alike, strict=True), key=lambda pair: pair[0]):
            size = max(float(np.linalg.norm(own.ravel()[some])), near * math.sqrt(some.size))
            if off <= UNROUNDED_APART * size and _is_rounding(stored, own):
                return own
        return None


def _is_rounding(stored: RoundedWeight, own: Array) -> bool:
    found = stored.honest(own)
    return found.is_right and not found.own_way


def unrounded(graph: OnnxGraph, own: OwnNumbers, cut: Cut, moved: bool = False) -> Any:
    """The graph in float, as an onnx.ModelProto; an error where it has what is not known here."""
    try:
        return _InFloat(graph, own, cut, moved).made()
    except UnreadError as error:
        raise BackendError(f"{error} is not known in float") from None


@dataclass(frozen=True)
class _Steps:
    """What a node rounds by, or reads by: tensors' names, and their numbers where stored."""

    step: str
    zero: str
    steps: Array | None
    zeros: Array | None


class _InFloat:
    """One graph on its way."""

    def __init__(self, graph: OnnxGraph, own: OwnNumbers, cut: Cut, moved: bool) -> None:
        self._proto = unfused(graph.proto, graph.stored)
        self._graph = OnnxGraph(graph.path, self._proto)
        self._own, self._cut, self._moved = own, cut, moved
        self._rng = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._stored: list[Any] = []
        self._count = 0

    def made(self) -> Any:
        for node in self._graph.nodes:
            if node.op == "QuantizeLinear":
                self._rounds(node)
            elif node.op == "DequantizeLinear":
                self._reads(node)
            elif node.op == "DynamicQuantizeLinear":
                self._op("Identity", node.inputs[:1], node.outputs[0])
                for name, value in zip(node.outputs[1:], (1.0, 0.0), strict=False):
                    self._store(np.float32(value), name)
            elif node.op in _PRODUCTS:
                self._multiplies(node)
            elif any(word in node.op for word in _ROUNDS):
                raise UnreadError(node.op)
            else:
                self._nodes.append(node.proto)
        copies = [type(one).FromString(one.SerializeToString()) for one in self._nodes]
        del self._proto.graph.node[:]
        self._proto.graph.node.extend(copies)
        self._proto.graph.initializer.extend(self._stored)
        del self._proto.graph.value_info[:]  # types of tensors that were whole numbers
        return self._proto

    def _rounds(self, node: Any) -> None:
        if self._graph.stored(node.inputs[0]) is not None:  # what reads it gets the floats
            self._op("Identity", node.inputs[:1], node.outputs[0])
            return
        given = self._steps(node)
        fraction = self._op("Div", (node.inputs[0], self._wide(given.step, given)))
        number = self._op("Add", (fraction, self._wide(given.zero, given)))
        for kind, end in self._cuts(node, given):
            number = self._op(kind, (number, self._store(np.asarray(end, _dtype(given)))))
        self._op("Identity", (number,), node.outputs[0])

    def _cuts(self, node: Any, given: _Steps) -> list[tuple[str, float]]:
        """What cuts off at which end of the whole numbers that a node rounds to."""
        ends = _ends(node, given.zeros)
        if ends is None or self._cut is Cut.NOWHERE:
            return []
        zero = 0.0 if given.zeros is None else float(given.zeros.astype(np.float64).flat[0])
        cuts = list(zip(("Max", "Min"), ends, strict=True))
        both = self._cut is Cut.EVERYWHERE or (self._cut is Cut.BEHIND_ZERO and zero in ends)
        return [one for one in cuts if both or one[1] == zero]

    def _reads(self, node: Any) -> None:
        if self._is_stored_in_float(node):
            self._op("Identity", node.inputs[:1], node.outputs[0])
            return
        given, moves = self._steps(node), self._moved_from(node.inputs[0])
        source = moves[0].inputs[0] if moves else node.inputs[0]
        numbers = self._graph.stored(source)
        if numbers is None:
            self._op("Identity", (self._read(node.inputs[0], given),), node.outputs[0])
            return
        if given.steps is None or (moves and given.steps.size > 1):
            raise UnreadError("a stored tensor with steps that are computed")
        says = {a.name: a.i for a in node.proto.attribute}
        axis, block = says.get("axis", 1), says.get("block_size", 0)
        axis = axis % numbers.ndim if numbers.ndim > 1 else 0
        read = in_blocks(np.atleast_1d(numbers), given.steps, given.zeros, axis, block)
        if read.grid.bits > FEW_BITS:
            read = replace(read, slack=max(float(np.max(read.slack)), FLOAT32_SLACK))
        floats = self._float_of(read).astype(_dtype(given))
        name = self._store(floats.reshape(numbers.shape))
        for move in moves:
            copy = type(move.proto).FromString(move.proto.SerializeToString())
            copy.input[0], name = name, self._fresh()
            copy.output[0] = copy.name = name
            self._nodes.append(copy)
        self._op("Identity", (name,), node.outputs[0])

    def _is_stored_in_float(self, node: Any) -> bool:
        """Whether what it reads is rounded as the graph runs, by the same steps."""
        made = self._graph.maker(node.inputs[0])
        if made is None or made.op != "QuantizeLinear":
            return False
        return self._graph.stored(made.inputs[0]) is not None and self._agree(made, node)

    def _agree(self, rounds: Any, reads: Any) -> bool:
        """Whether two nodes go by the same steps and zeros."""
        both = [[self._graph.stored(n) for n in one.inputs[1:] if n] for one in (rounds, reads)]
        first, second = both
        return len(first) == len(second) and all(
            a is not None and b is not None and np.array_equal(a, b)
            for a, b in zip(first, second, strict=True)
        )

    def _float_of(self, read: RoundedWeight) -> Array:
        own = self._own.of(read)
        if own is not None:
            return own
        return read.moved(self._rng) if self._moved else read.values

    def _moved_from(self, tensor: str) -> list[Any]:
        """The nodes that hand a stored tensor on to this one, the first one first."""
        found: list[Any] = []
        while (made := self._graph.maker(tensor)) is not None and made.op in _MOVES:
            found.insert(0, made)
            tensor = made.inputs[0]
        return found if self._graph.stored(tensor) is not None else []

    def _multiplies(self, node: Any) -> None:
        sides = [*node.inputs, "", ""]
        wide = [
            self._read(name, _Steps("", zero, None, None))
            for name, zero in zip(sides[:2], sides[2:4], strict=True)
        ]
        self._op(_PRODUCTS[node.op], wide, node.outputs[0], node.proto.attribute)

    def _read(self, tensor: str, given: _Steps) -> str:
        """Numbers as what they stand for: by their zero and step, where they have them."""
        made = self._cast(tensor, given)
        if given.zero:
            made = self._op("Sub", (made, self._wide(given.zero, given)))
        return self._op("Mul", (made, self._wide(given.step, given))) if given.step else made

    def _steps(self, node: Any) -> _Steps:
        """For all of a tensor one step; or, of a stored tensor, whatever it has."""
        _, step, *zeros = node.proto.input
        zero = zeros[0] if zeros else ""
        stored, none = self._graph.stored(step), self._graph.stored(zero) if zero else None
        if stored is not None and stored.size == 1:
            stored = stored.reshape(())
            none = None if none is None else none.reshape(())
        elif stored is not None and self._graph.stored(node.inputs[0]) is None:
            raise UnreadError("rounding by several steps")
        return _Steps(step, zero, stored, none)

    def _wide(self, name: str, given: _Steps) -> str:
        """A step or a zero in the type of the step; where it is stored, as a scalar."""
        known = given.steps if name == given.step else given.zeros
        if not name:
            return self._store(np.asarray(0, _dtype(given)))
        if known is not None:
            return self._store(known.astype(_dtype(given)))
        return self._cast(name, given)

    def _cast(self, tensor: str, given: _Steps) -> str:
        from onnx import helper

        kind = helper.np_dtype_to_tensor_dtype(_dtype(given))
        return self._op("Cast", (tensor,), more=(helper.make_attribute("to", kind),))

    def _op(self, kind: str, given: Sequence[str], gives: str = "", more: Any = ()) -> str:
        from onnx import helper

        made = helper.make_node(kind, list(given), [gives or self._fresh()])
        made.attribute.extend(more)
        self._nodes.append(made)
        return str(made.output[0])

    def _store(self, array: Any, name: str = "") -> str:
        from onnx import numpy_helper

        name = name or self._fresh()
        self._stored.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def _fresh(self) -> str:
        self._count += 1
        return f"unrounded.{self._count}"


def _dtype(given: _Steps) -> np.dtype[Any]:
    return np.dtype(np.float32) if given.steps is None else given.steps.dtype


def _ends(node: Any, zeros: Array | None) -> tuple[float, float] | None:
    """The least and the greatest of the whole numbers that it rounds to; None for floats."""
    from onnx import helper

    kind = next((a.i for a in node.proto.attribute if a.name == "output_dtype"), 0)
    dtype = np.dtype(np.uint8) if zeros is None else zeros.dtype
    if zeros is None and kind:
        dtype = helper.tensor_dtype_to_np_dtype(kind)
    grid = grid_of(dtype.name)
    return None if grid is None or grid.digits is not None else (grid.lowest, grid.highest)
