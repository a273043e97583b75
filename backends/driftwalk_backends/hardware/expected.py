"""What a unit should have given, from float64 on the CPU, and how far off its dtype allows it.

The bounds are those of plain error analysis: a sum of K products in a format with roundoff u is off
by at most about K u times the sum of their sizes. They leave room for any order of summation and
for accumulation in float32; a unit that drops a bit of an exponent or a high mantissa bit is far
outside.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from driftwalk.dtypes import FORMATS
from driftwalk.tasks.hardware.result import Flip

from .digest import locate
from .units import DTYPES, OPERATIONS, Unit

FP32 = FORMATS["fp32"].roundoff
MOST_FLIPS = 8


@dataclass(frozen=True)
class Judged:
    """A unit's result against float64."""

    ratio: float
    """The largest error over what is allowed there; infinite where the result is not finite."""
    differing: int = 0
    total: int = 0
    flips: tuple[Flip, ...] = ()
    """The first elements that are too far off, against float64 rounded to the dtype."""


def judge(unit: Unit, inputs: list[torch.Tensor], found: torch.Tensor) -> Judged:
    """Hold one result against float64; all of it runs on the CPU."""
    host = found.detach().cpu()
    wide = [tensor.detach().cpu().double() for tensor in inputs]
    right = OPERATIONS[unit.kind](*wide)
    allowed = _allowed(unit, wide, right)
    off = (host.double() - right).abs()
    ratio = torch.where(off > 0, off / allowed, torch.zeros_like(off))
    ratio = torch.where(torch.isfinite(host.double()), ratio, torch.inf)
    wrong = (ratio > 1).reshape(-1)
    count = int(wrong.sum())
    if not count:
        return Judged(float(ratio.max()), 0, host.numel())
    # Where it is right, its own bits stand in: only what is too far off is listed.
    rounded = right.to(host.dtype).reshape(-1)
    flat = host.contiguous().reshape(-1)
    reference = torch.where(wrong, rounded, flat).view(host.shape)
    return Judged(float(ratio.max()), count, host.numel(), locate(reference, host)[1])


def _allowed(unit: Unit, wide: list[torch.Tensor], right: torch.Tensor) -> torch.Tensor:
    u = _roundoff(unit)
    native = DTYPES[unit.dtype]
    least = float(torch.finfo(native).tiny)  # denormals may be flushed to 0, in or out
    # Formats below float32 are summed in float32 and rounded at the end, or a few times on the way.
    terms = FP32 if u > FP32 else u
    if unit.kind == "matmul":
        a, b = wide
        sizes = a.abs() @ b.abs()
        few = 4 if unit.dtype in ("fp64", "fp32") else 16
        flushed = a.shape[1] * least * float(b.abs().max())
        return (few * u + a.shape[1] * terms) * sizes + flushed
    x = wide[0]
    if unit.kind == "attention":
        return (16 * u + 64 * terms) * wide[2].abs().amax() + torch.zeros_like(right) + least
    if unit.kind == "reduction":
        down, along = x.abs().sum(0), x.abs().sum(1)
        summed = [down * x.shape[0], x.new_zeros(x.shape[1]), along * x.shape[1]]
        many = torch.cat([*summed, x.new_zeros(x.shape[0])]) * terms
        return many + 4 * u * right.abs() + least * max(x.shape)
    if unit.kind == "normalisation":
        return (8 * u + 64 * terms) * (right.abs().amax() + 1) + torch.zeros_like(right)
    return (8 * u + 32 * terms) * (right.abs() + 1)


def _roundoff(unit: Unit) -> float:
    """Of one operation; where the user has allowed float32 products to be coarser, of that."""
    mode = os.environ.get("DNNL_DEFAULT_FPMATH_MODE", "").upper()
    if unit.dtype == "fp32" and unit.kind in ("matmul", "attention") and mode in ("BF16", "ANY"):
        return FORMATS["bf16"].roundoff
    if unit.dtype == "tf32":
        return 2 * FORMATS["tf32"].roundoff  # some devices cut off instead of rounding
    if unit.dtype == "fp8":
        return FORMATS["bf16"].roundoff  # inputs are exact; sums are kept in few bits
    return FORMATS[unit.dtype].roundoff
