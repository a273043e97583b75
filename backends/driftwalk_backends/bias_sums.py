"""Sums that begin with the bias and are rounded after each term: what XNNPACK's linear layers do.

    PyTorch      y = (a_1 b_1 + a_2 b_2 + ...) + bias      the bias is added to a finished sum
    from-bias    y = ((bias + a_1 b_1) + a_2 b_2) + ...    each sum with it is rounded

Where the bias is larger than the terms, every term costs a roundoff of the bias. That is honest
arithmetic, and a yardstick that adds the bias last knows nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

from .widening import Args, EachOp, Kwargs

aten = torch.ops.aten

_NARROW = torch.float32
_BLOCK = 1 << 22
"""Numbers of a matrix that are made wide at once."""


@contextmanager
def bias_sums() -> Iterator[None]:
    """Such sums in all that runs meanwhile."""
    with _Contiguous(), BiasSums():
        yield


class _Contiguous(TorchFunctionMode):
    """Linear layers of transposed inputs, too, are one operation: else the bias is added later."""

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        if func is linear and args and not args[0].is_contiguous():
            args = (args[0].contiguous(), *args[1:])
        return func(*args, **(kwargs or {}))


class BiasSums(EachOp):
    """Linear layers and convolutions in float32 whose sums begin with the bias."""

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        made = None
        if not kwargs and func in (aten.addmm.default, aten.mm.default):
            bias, a, b = args if func is aten.addmm.default else (None, *args)
            made = summed(a, b, bias) if _fits(bias, a, b) else None
        elif not kwargs and func is aten.convolution.default and _fits(args[2], *args[:2]):
            made = _convolution(*args)
        return func(*args, **kwargs) if made is None else made


def _fits(*tensors: torch.Tensor | None) -> bool:
    return all(one is None or one.dtype is _NARROW for one in tensors)


def summed(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`bias + a @ b`, the terms added one after another, the sum rounded after each.

    A product of two float32 is exact in float64: so each step is a fused multiply-add.
    """
    total = torch.zeros((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
    if bias is not None:
        total += bias
    step, wide = torch.empty_like(total, dtype=torch.float64), torch.float64
    terms = a.shape[-1]
    at_once = max(1, _BLOCK // max(1, b.shape[-1] * math.prod(b.shape[:-2])))
    for start in range(0, terms, at_once):
        left = a[..., start : start + at_once].to(wide)
        right = b[..., start : start + at_once, :].to(wide)
        for k in range(left.shape[-1]):
            torch.mul(left[..., k, None], right[..., k, None, :], out=step)
            step += total
            total.copy_(step)
    return total


def _convolution(
    given: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _: list[int],
    groups: int,
) -> torch.Tensor | None:
    """A convolution as a product of matrices; None for one that is transposed."""
    axes, kernel = range(given.ndim - 2), weight.shape[2:]
    if transposed or given.ndim != weight.ndim or len(stride) != len(axes):
        return None
    patches = pad(given, [size for size in reversed(padding) for _ in "ab"])
    for axis in axes:  # one axis more for each, along the kernel
        span = dilation[axis] * (kernel[axis] - 1) + 1
        patches = patches.unfold(axis + 2, span, stride[axis])[..., :: dilation[axis]]
    sizes = patches.shape[2 : given.ndim]
    rows, of_each = len(given) * math.prod(sizes), weight[0].numel()
    # [batch, groups, channels, *sizes, *kernel] to [groups, rows, terms], channels innermost
    patches = patches.reshape(len(given), groups, -1, *patches.shape[2:])
    patches = patches.movedim(1, 0).movedim(2, -1)
    left = patches.reshape(groups, rows, of_each)
    right = (
        weight.reshape(groups, -1, *weight.shape[1:]).movedim(2, -1).reshape(groups, -1, of_each)
    )
    made = summed(left, right.mT, None if bias is None else bias.reshape(groups, 1, -1))
    made = made.reshape(groups, len(given), *sizes, -1).movedim(-1, 1).movedim(2, 0)
    return made.reshape(len(given), -1, *sizes)
