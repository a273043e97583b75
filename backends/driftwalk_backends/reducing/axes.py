"""Which axes of a cut's tensors are one: of a square matrix, rows and columns are two.

    x [n, k]  @  w [k, m]  ->  y [n, m]          three axes, also where n, k and m are one number

All axes of a length are cut to one size; where they begin each may say for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

from .cuts import Cut

Axis = tuple[str, int]
"""Of a tensor, by its name and from its first axis on."""
Shapes = Mapping[str, tuple[int, ...]]
_PRODUCTS = {"MatMul", "Gemm", "mm", "bmm", "matmul", "addmm", "baddbmm"}
_ALIGNED = {"Add", "Sub", "Mul", "Div", "Tanh", "Gelu", "Erf", "Sigmoid", "Relu", "Cast", "Softmax"}
_ALIGNED |= {"add", "sub", "mul", "div", "tanh", "gelu", "sigmoid", "relu", "silu"}
_ALIGNED |= {"native_dropout"}
"""What takes and gives tensors of one shape, or such as are broadcast to it."""


def is_square(arrays: Mapping[str, Array], length: int) -> bool:
    """Whether any array has a length twice."""
    return any(array.shape.count(length) > 1 for array in arrays.values())


def groups(cut: Cut, shapes: Shapes, length: int) -> list[set[Axis]]:
    """Of all axes of a length, those that are one."""
    names = [name for name in shapes if length in shapes[name]]
    group = {(n, i): {(n, i)} for n in names for i, size in enumerate(shapes[n]) if size == length}
    for node in cut.nodes:
        for one, other in _pairs(node, shapes):
            if one in group and other in group and group[one] is not group[other]:
                group[one] |= group[other]
                group |= dict.fromkeys(group[other], group[one])
    return list({id(axes): axes for axes in group.values()}.values())


def _pairs(node: Any, shapes: Shapes) -> Iterator[tuple[Axis, Axis]]:
    """Axes that are one by what a node does; of an unknown one, all that are as long."""
    inputs, outputs = [[n for n in names if n in shapes] for names in (node.input, node.output)]
    if len(outputs) == 1 and node.op_type in _PRODUCTS:
        yield from _of_product(node, inputs, outputs[0], shapes)
    elif len(outputs) == 1 and node.op_type in _ALIGNED:
        for name in inputs:
            yield from _aligned(name, outputs[0], shapes)
    else:
        axes = [(n, i) for n in (*inputs, *outputs) for i in range(len(shapes[n]))]
        yield from ((one, other) for one in axes for other in axes)


def _aligned(one: str, other: str, shapes: Shapes, skip: int = 0) -> Iterator[tuple[Axis, Axis]]:
    """Axes counted from the last one, without the last few."""
    first, second = len(shapes[one]), len(shapes[other])
    for back in range(1 + skip, min(first, second) + 1):
        yield (one, first - back), (other, second - back)


def _of_product(
    node: Any, inputs: Sequence[str], made: str, shapes: Shapes
) -> Iterator[tuple[Axis, Axis]]:
    turned = {a.name: a.i for a in node.attribute if a.name in ("transA", "transB")}
    has_bias_first = node.op_type in ("addmm", "baddbmm")
    left, right = inputs[1:3] if has_bias_first else inputs[:2]
    for name in inputs[:1] if has_bias_first else inputs[2:]:
        yield from _aligned(name, made, shapes)
    rows, inner = (1, 2) if turned.get("transA") else (2, 1)
    columns, other = (2, 1) if turned.get("transB") else (1, 2)
    last = len(shapes[made])
    yield (left, len(shapes[left]) - inner), (right, len(shapes[right]) - other)
    yield (left, len(shapes[left]) - rows), (made, last - 2)
    yield (right, len(shapes[right]) - columns), (made, last - 1)
    yield from _aligned(left, made, shapes, 2)
    yield from _aligned(right, made, shapes, 2)


def begins(
    cut: Cut, shapes: Shapes, wrong: Mapping[str, Array], length: int, size: int
) -> dict[Axis, int]:
    """Where each axis of a length is to begin, so that a place is left at which something is wrong.

    `wrong` are errors of tensors by their names; what the first of them says of an axis counts.
    """
    axes = groups(cut, shapes, length)
    made: dict[Axis, int] = {}
    for name, error in wrong.items():
        places = np.unravel_index(_size(error).argmax(), error.shape)
        for axis, place in enumerate(places):
            group = next((one for one in axes if (name, axis) in one), set())
            if not group & made.keys():
                begin = max(0, min(int(place) - size // 2, length - size))
                made |= dict.fromkeys(group, begin)
    return made


def _size(error: Array) -> Array:
    size: Array = np.where(np.isfinite(error), np.abs(error), np.inf)
    return size
