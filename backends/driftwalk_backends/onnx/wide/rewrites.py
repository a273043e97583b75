"""Operations that ONNX Runtime does not have in float64, made of operations that it has.

Each is what the ONNX specification says of it, term by term: a convolution is the product of its
weights with the shifted copies of its input. None: this form of the operation is not rewritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

_END = np.iinfo(np.int64).max
_NODES = 40
"""Of the Gauss-Legendre rule that an integral is taken by: 2e-15 up to 6.5."""
_FLAT = 6.5
"""Beyond this, 1 - erf is less than a unit of float64."""

Shape = tuple[int | None, ...]


class Rewriting:
    """The nodes that stand for one operation, as they are made."""

    def __init__(self, node: Any, name: str, opset: int, shape_of: Callable[[str], Shape | None]):
        self.node = node
        self.name = name
        self.opset = opset
        self.shape_of = shape_of
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self._attributes = {a.name: a for a in node.attribute}

    def _fresh(self) -> str:
        return f"{self.name}/{len(self.nodes) + len(self.stored)}"

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One more node; the name of what it gives."""
        from onnx import helper

        made = self._fresh()
        self.nodes.append(helper.make_node(kind, list(inputs), [made], **attributes))
        return made

    def number(self, value: Array | float) -> str:
        """A stored tensor of float64."""
        return self._keep(np.asarray(value, np.float64))

    def whole(self, values: Sequence[int]) -> str:
        """A stored row of whole numbers."""
        return self._keep(np.asarray(values, np.int64))

    def _keep(self, array: Array) -> str:
        from onnx import numpy_helper

        made = self._fresh()
        self.stored.append(numpy_helper.from_array(array, made))
        return made

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        known = self._attributes.get(name)
        return list(known.ints) if known is not None else list(default)

    def one(self, name: str, default: int = 0) -> int:
        known = self._attributes.get(name)
        return known.i if known is not None else default

    def real(self, name: str, default: float) -> float:
        known = self._attributes.get(name)
        return known.f if known is not None else default

    def text(self, name: str, default: str) -> str:
        known = self._attributes.get(name)
        return known.s.decode() if known is not None else default

    def reduced(self, kind: str, x: str, axes: Sequence[int]) -> str:
        if self.opset >= 18 or (kind == "ReduceSum" and self.opset >= 13):
            return self.op(kind, x, self.whole(axes), keepdims=1)
        return self.op(kind, x, axes=list(axes), keepdims=1)


def conv(r: Rewriting) -> str | None:
    x, w, *bias = r.node.input
    shape = r.shape_of(w)
    if shape is None or None in shape or len(shape) < 3:
        return None
    many, own, *kernel = [size or 0 for size in shape]
    groups = r.one("group", 1)
    strides = r.ints("strides", [1] * len(kernel))
    dilations = r.ints("dilations", [1] * len(kernel))
    pads = _pads(r, x, kernel, strides, dilations)
    if pads is None or not _fits(r, x, kernel, dilations, pads):
        return None
    shape = r.shape_of(x)
    x = _padded(r, x, pads, 0.0)
    if shape is None or None in shape:
        inputs, target = _from_shifts(r, x, (groups, own, many), (kernel, strides, dilations))
    else:
        half = len(pads) // 2
        sizes = [
            (n or 0) + a + b for n, a, b in zip(shape[2:], pads[:half], pads[half:], strict=True)
        ]
        ways = list(zip(sizes, kernel, strides, dilations, strict=True))
        inputs, target = _from_places(r, x, (groups, own, many), ways)
    taps = math.prod(kernel)
    weights = r.op("Reshape", w, r.whole([groups, many // groups, own, taps]))
    weights = r.op("Transpose", weights, perm=[0, 1, 3, 2])
    weights = r.op("Reshape", weights, r.whole([groups, many // groups, taps * own]))
    products = r.op("MatMul", weights, inputs)
    y = r.op("Reshape", products, target)
    if bias and bias[0]:
        row = r.op("Reshape", bias[0], r.whole([1, many, *[1] * len(kernel)]))
        y = r.op("Add", y, row)
    return y


def _from_shifts(
    r: Rewriting, x: str, channels: tuple[int, int, int], ways: tuple[list[int], ...]
) -> tuple[str, str]:
    """What each place of the output is made of, as a column; and the shape of the output.

    For sizes that are not known: one shifted copy for each place of the kernel.
    """
    groups, own, many = channels
    shifted = _shifted(r, x, *ways)
    columns = [r.op("Reshape", one, r.whole([0, groups, own, -1])) for one in shifted]
    places = r.op("Slice", r.op("Shape", shifted[0]), r.whole([2]), r.whole([_END]))
    return r.op("Concat", *columns, axis=2), r.op("Concat", r.whole([0, many]), places, axis=0)


def _from_places(
    r: Rewriting, x: str, channels: tuple[int, int, int], ways: list[tuple[int, int, int, int]]
) -> tuple[str, str]:
    """The same for known sizes, axis by axis: of few nodes, however long the kernel."""
    groups, own, many = channels
    split, out = [], []
    for axis, (size, k, stride, dilation) in enumerate(ways):
        steps = (size - (k - 1) * dilation - 1) // stride + 1
        places = np.arange(k)[:, None] * dilation + np.arange(steps)[None, :] * stride
        if k > 1 or stride > 1:
            x = r.op("Gather", x, r.whole(places.reshape(-1).tolist()), axis=2 + axis)
        split += [k, steps]
        out.append(steps)
    apart = r.op("Reshape", x, r.whole([0, groups, own, *split]))
    of_kernel = range(3, 3 + len(split), 2)
    turned = [0, 1, *of_kernel, 2, *(axis + 1 for axis in of_kernel)]
    columns = r.op("Transpose", apart, perm=turned)
    rows = own * math.prod(k for _, k, _, _ in ways)
    inputs = r.op("Reshape", columns, r.whole([0, groups, rows, math.prod(out)]))
    return inputs, r.whole([0, many, *out])


def average_pool(r: Rewriting) -> str | None:
    x, kernel = r.node.input[0], r.ints("kernel_shape", [])
    strides = r.ints("strides", [1] * len(kernel))
    dilations = r.ints("dilations", [1] * len(kernel))
    pads = _pads(r, x, kernel, strides, dilations)
    if pads is None or r.one("ceil_mode") or not kernel:
        return None
    if not _fits(r, x, kernel, dilations, pads):
        return None

    def total(tensor: str) -> str:
        shifted = _shifted(r, _padded(r, tensor, pads, 0.0), kernel, strides, dilations)
        return r.op("Sum", *shifted)

    if any(pads) and not r.one("count_include_pad"):
        ones = r.op("Expand", r.number(1.0), r.op("Shape", x))
        return r.op("Div", total(x), total(ones))
    return r.op("Div", total(x), r.number(math.prod(kernel)))


def _pads(
    r: Rewriting,
    x: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int] | None:
    """Before each axis, then behind each; None where that depends on a size that is not known."""
    way = r.text("auto_pad", "NOTSET")
    if way in ("NOTSET", ""):
        return r.ints("pads", [0] * 2 * len(kernel))
    if way == "VALID":
        return [0] * 2 * len(kernel)
    shape = r.shape_of(x)
    sizes = shape[2:] if shape is not None else (None,)
    if None in sizes:
        return None
    before, behind = [], []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        lacking = max(0, (-(-(size or 0) // s) - 1) * s + (k - 1) * d + 1 - (size or 0))
        less, more = lacking // 2, lacking - lacking // 2
        before.append(less if way == "SAME_UPPER" else more)
        behind.append(more if way == "SAME_UPPER" else less)
    return [*before, *behind]


def _fits(
    r: Rewriting, x: str, kernel: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> bool:
    """Whether a kernel is no longer than what it goes over; runtimes differ beyond that."""
    shape = r.shape_of(x)
    sizes = shape[2:] if shape is not None else [None] * len(kernel)
    half = len(kernel)
    around = zip(sizes, kernel, dilations, pads[:half], pads[half:], strict=True)
    return all(size is None or size + a + b > (k - 1) * d for size, k, d, a, b in around)


def _padded(r: Rewriting, x: str, pads: Sequence[int], value: float) -> str:
    if not any(pads):
        return x
    half = len(pads) // 2
    around = r.whole([0, 0, *pads[:half], 0, 0, *pads[half:]])
    return r.op("Pad", x, around, r.number(value), mode="constant")


def _shifted(
    r: Rewriting,
    x: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[str]:
    """The input as each place of a kernel meets it: one step of the kernel, one element."""
    axes, steps = r.whole(range(2, 2 + len(kernel))), r.whole(strides)
    found = []
    for place in product(*map(range, kernel)):
        starts = [k * d for k, d in zip(place, dilations, strict=True)]
        left = [(n - 1 - k) * d for n, k, d in zip(kernel, place, dilations, strict=True)]
        ends = [-rest if rest else _END for rest in left]
        found.append(r.op("Slice", x, r.whole(starts), r.whole(ends), axes, steps))
    return found


def over_places(kind: str) -> Callable[[Rewriting], str | None]:
    """All that lies behind rows and channels, as one number."""

    def made(r: Rewriting) -> str | None:
        shape = r.shape_of(r.node.input[0])
        if shape is None:
            return None
        return r.reduced(kind, r.node.input[0], range(2, len(shape)))

    return made


def instance_norm(r: Rewriting) -> str | None:
    x, scale, bias = r.node.input
    shape = r.shape_of(x)
    if shape is None:
        return None
    axes, row = range(2, len(shape)), r.whole([1, -1, *[1] * (len(shape) - 2)])
    centred = r.op("Sub", x, r.reduced("ReduceMean", x, axes))
    spread = r.reduced("ReduceMean", r.op("Mul", centred, centred), axes)
    root = r.op("Sqrt", r.op("Add", spread, r.number(r.real("epsilon", 1e-5))))
    scaled = r.op("Mul", r.op("Div", centred, root), r.op("Reshape", scale, row))
    return r.op("Add", scaled, r.op("Reshape", bias, row))


def erf(r: Rewriting) -> str:
    return _erf(r, r.node.input[0])


def _erf(r: Rewriting, x: str) -> str:
    """2 x / sqrt(pi) times the integral of exp(-(x t)^2) over t from 0 to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    places = -(((nodes + 1) / 2) ** 2)
    near = r.op("Max", r.op("Min", x, r.number(_FLAT)), r.number(-_FLAT))
    column = r.op("Reshape", r.op("Mul", near, near), r.whole([-1, 1]))
    heights = r.op("Exp", r.op("Mul", column, r.number(places.reshape(1, -1))))
    area = r.op("MatMul", heights, r.number(weights.reshape(-1, 1) / 2))
    back = r.op("Reshape", area, r.op("Shape", x))
    return r.op("Mul", back, r.op("Mul", near, r.number(2 / math.sqrt(math.pi))))


def gelu(r: Rewriting) -> str:
    x = r.node.input[0]
    if r.text("approximate", "none") == "tanh":
        cube = r.op("Mul", r.op("Mul", x, x), x)
        inner = r.op("Add", x, r.op("Mul", cube, r.number(0.044715)))
        gate = r.op("Tanh", r.op("Mul", inner, r.number(math.sqrt(2 / math.pi))))
    else:
        gate = _erf(r, r.op("Mul", x, r.number(math.sqrt(0.5))))
    half = r.op("Mul", x, r.number(0.5))
    return r.op("Mul", half, r.op("Add", gate, r.number(1.0)))


def hard_sigmoid(r: Rewriting) -> str:
    return _hard(r, float(np.float32(r.real("alpha", 0.2))), r.real("beta", 0.5))


def hard_swish(r: Rewriting) -> str:
    return r.op("Mul", r.node.input[0], _hard(r, 1 / 6, 0.5))


def _hard(r: Rewriting, alpha: float, beta: float) -> str:
    line = r.op("Add", r.op("Mul", r.node.input[0], r.number(alpha)), r.number(beta))
    return r.op("Max", r.op("Min", line, r.number(1.0)), r.number(0.0))


def elu(r: Rewriting) -> str:
    return _below(r, r.real("alpha", 1.0), 1.0)


def selu(r: Rewriting) -> str:
    return _below(r, r.real("alpha", 1.6732631921768188), r.real("gamma", 1.0507010221481323))


def _below(r: Rewriting, alpha: float, gamma: float) -> str:
    x, zero = r.node.input[0], r.number(0.0)
    low = r.op("Sub", r.op("Exp", r.op("Min", x, zero)), r.number(1.0))
    both = r.op("Add", r.op("Max", x, zero), r.op("Mul", low, r.number(alpha)))
    return r.op("Mul", both, r.number(gamma))


def prelu(r: Rewriting) -> str:
    x, slope = r.node.input
    low = r.op("Mul", r.op("Min", x, r.number(0.0)), slope)
    return r.op("Add", r.op("Max", x, r.number(0.0)), low)


def softplus(r: Rewriting) -> str:
    x = r.node.input[0]
    small = r.op("Exp", r.op("Neg", r.op("Abs", x)))
    tail = r.op("Log", r.op("Add", small, r.number(1.0)))
    return r.op("Add", r.op("Max", x, r.number(0.0)), tail)


REWRITES: dict[str, Callable[[Rewriting], str | None]] = {
    "Conv": conv,
    "AveragePool": average_pool,
    "GlobalAveragePool": over_places("ReduceMean"),
    "GlobalMaxPool": over_places("ReduceMax"),
    "InstanceNormalization": instance_norm,
    "Erf": erf,
    "Gelu": gelu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Elu": elu,
    "Selu": selu,
    "PRelu": prelu,
    "Softplus": softplus,
}
