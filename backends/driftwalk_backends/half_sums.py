"""Convolutions whose sums, too, are made in half precision: what some CPUs' own kernels do.

PyTorch sums halves in float32 wherever it can choose. Of its convolutions on some ARM CPUs it
cannot: their library rounds after each product. The error is then many roundoffs of a half, on
every run of plain eager PyTorch there, and a yardstick that sums in float32 knows nothing of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn

from .constants import HALF_SUMS_TRIED, SUMS_IN_HALF

CONVOLUTION = torch.ops.aten.convolution.default


def has_convolution(module: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())


@cache
def sums_in_half(dtype: torch.dtype) -> bool:
    """Whether this CPU's convolutions are worse than sums in float32; seen, not looked up."""
    onednn = torch._C._get_mkldnn_enabled()
    try:
        return any(_is_worse(dtype, *shapes) for shapes in HALF_SUMS_TRIED)
    except RuntimeError:  # no such kernel
        return False
    finally:
        torch._C._set_mkldnn_enabled(onednn)  # a CPU without bf16 switches it off, for good


def _is_worse(dtype: torch.dtype, given: Any, weights: Any, stride: int) -> bool:
    random = torch.Generator().manual_seed(0)
    x, w = (torch.randn(size, generator=random).to(dtype) for size in (given, weights))

    def made(computed_in: torch.dtype) -> torch.Tensor:
        return nn.functional.conv2d(x.to(computed_in), w.to(computed_in), stride=stride).double()

    true, wide, own = made(torch.float64), made(torch.float32).to(dtype).double(), made(dtype)
    return bool((own - true).norm() > SUMS_IN_HALF * (wide - true).norm())


def own_convolution(args: tuple[Any, ...], wide: torch.Tensor) -> torch.Tensor:
    """What the CPU's own kernel gives for the arguments of a convolution in half precision.

    `wide` is its result with sums in float32. Where the kernel is worse than sums in half precision
    are, that is no honest arithmetic, and `wide` rounded is given in its place.
    """
    own = CONVOLUTION(*args)
    given, weights, _, *others = args
    sizes = CONVOLUTION(given.float().abs(), weights.float().abs(), None, *others)
    return own if are_half_sums(own, wide, sizes) else wide.to(own.dtype)


def are_half_sums(sums: torch.Tensor, true: torch.Tensor, sizes: torch.Tensor) -> bool:
    """Whether sums are as good as rounding after each term allows; `sizes`: of terms without signs.

    A sum of terms of both signs is then off by half a roundoff of its size, however many there are
    (measured, 48 to 2304 terms: 0.46 to 0.50); by one at the most.
    """
    most = torch.finfo(sums.dtype).eps / 2 * sizes.double().norm()
    return bool((sums.double() - true.double()).norm() <= most)
