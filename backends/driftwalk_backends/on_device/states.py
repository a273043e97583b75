"""States left on their device, and their sums formed there.

Triton kernels (batching.py) do it where they can; else plain tensor operations, in float64.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.measure.metric_list import Sums
from driftwalk.measure.reduction import Reduced, Reducing
from driftwalk.measure.ulp import BUCKETS, SHIFT, UlpHistogram
from driftwalk.states import Held
from driftwalk.tolerance import Tolerance

from ..tensors import TORCH_DTYPES, as_rows, to_numpy

SHARE = 0.25
"""How much of a device's free memory the states of one run may take."""

KNOWN = (torch.float16, torch.bfloat16, torch.float32)
"""Formats whose squares float64 can hold; float64 itself is left to the host."""

CHUNK = 1 << 22
"""Elements looked at together: some thirty temporaries of this size are alive at once."""

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class HeldTensor:
    """A tensor of ours, on its device, and the squares of its rows, if they are known."""

    def __init__(self, tensor: torch.Tensor, squares: torch.Tensor | None = None) -> None:
        self.tensor = tensor.contiguous()
        self.kind, self.device = tensor.dtype, tensor.device
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype = _NAMES[tensor.dtype]
        self.rows = math.prod(self.shape[:-1][:2])
        self.width = tensor.numel() // max(1, self.rows)
        self.address: int = self.tensor.data_ptr()
        self._squares = squares

    @property
    def squares(self) -> torch.Tensor:
        if self._squares is None:
            self._squares = as_rows(self.tensor).double().square().sum(1)
        return self._squares

    def fetch(self) -> Array:
        return to_numpy(self.tensor)

    def reduce(self, reference: Held, tolerance: Tolerance, rows: Array) -> Reducing | None:
        """Begin on the device's own queue; the numbers are waited for when they are asked for."""
        if not isinstance(reference, HeldTensor):
            return None
        fits = reference.shape == self.shape and reference.device == self.device
        known = reference.kind in KNOWN and self.kind in KNOWN
        if not (fits and known and self.rows and self.width):
            return None
        chosen = None if len(rows) == self.rows else rows
        kernels = _kernels(self.device)
        if kernels is not None:
            begun: Reducing | None = kernels.fused(reference, self, tolerance, chosen)
            if begun is not None:
                return begun
        return eager(as_rows(reference.tensor), as_rows(self.tensor), tolerance, chosen)


class Holding:
    """Keeps states on a device while there is room, and copies the others to the host."""

    def __init__(self, device: torch.device) -> None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
        self._left = free * SHARE

    def keep(self, tensor: torch.Tensor) -> HeldTensor | None:
        """A copy on the device; None where it would take more than its share."""
        self._left -= tensor.nbytes
        if self._left < 0 or tensor.dtype not in _NAMES:
            return None
        known = tensor.dtype in KNOWN and tensor.numel()
        kernels = _kernels(tensor.device) if known else None
        if kernels is not None:
            return HeldTensor(*kernels.copied(tensor.detach()))
        return HeldTensor(tensor.detach().clone(memory_format=torch.contiguous_format))


@cache
def _kernels(device: torch.device) -> Any:
    """The module that launches kernels, where there are some for this device.

    Triton may be missing, and needs a C compiler: try, and do without.
    """
    if device.type != "cuda":
        return None
    try:
        from . import batching

        some = HeldTensor(*batching.copied(torch.ones((2, 16), dtype=KNOWN[0], device=device)))
        # The second launch takes a shorter way than the first.
        begun = [batching.fused(some, some, Tolerance(1.0), None) for _ in range(2)]
        works = all(wait is not None and wait() is not None for wait in begun)
    except Exception:  # whatever a compiler raises
        return None
    return batching if works else None


def eager(r: torch.Tensor, c: torch.Tensor, tolerance: Tolerance, rows: Array | None) -> Reducing:
    """The sums of two tables of rows, by plain operations; `rows` are those that count."""
    if rows is not None:
        chosen = torch.from_numpy(rows).to(r.device)
        r, c = r.index_select(0, chosen), c.index_select(0, chosen)
    step = max(1, CHUNK // r.shape[1])
    chunks = [slice(start, start + step) for start in range(0, len(r), step)]
    scale = torch.ones((), dtype=torch.float64, device=r.device)
    if tolerance.scale == "rms":
        squares = torch.stack([r[some].double().square().sum() for some in chunks])
        scale = (squares.sum() / r.numel()).sqrt()
    pieces = [_piece(r[x], c[x], tolerance.atol * scale, tolerance.rtol) for x in chunks]

    def wait() -> Reduced | None:
        told = torch.stack([numbers for numbers, _, _ in pieces]).cpu().numpy()
        if not np.isfinite(told[:, :4]).all():
            return None
        rr, cc, rc, abs_d = told[:, :4].sum(axis=0).tolist()
        max_rel, exceeded, ulp_max = told[:, 4:7].max(axis=0).tolist()
        first = int(np.argmax(told[:, 7]))
        at, worst_r, worst_c = told[first, 8:11].tolist()
        row, column = divmod(int(at), r.shape[1])
        row_dd = torch.cat([row_dd for _, row_dd, _ in pieces]).cpu().numpy()
        ulps = UlpHistogram()
        counts = torch.stack([counts for _, _, counts in pieces]).sum(0)
        ulps.add_counts(counts.cpu().numpy(), int(ulp_max))
        sums = Sums(
            count=r.numel(),
            abs_d=abs_d,
            dd=float(row_dd.sum()),
            rr=rr,
            cc=cc,
            rc=rc,
            max_abs=abs(worst_c - worst_r),
            max_rel=max_rel,
            worst_at=(first * step + row, column),
            exceeded=exceeded,
            mismatched=int(told[:, 11].sum()),
            ulp_max=ulps.max,
            ulp_p99=ulps.quantile(0.99),
            row_l2=[np.sqrt(row_dd)],
        )
        return Reduced(sums, float(scale), (worst_r, worst_c))

    return wait


def _piece(
    r_raw: torch.Tensor, c_raw: torch.Tensor, floor: torch.Tensor, rtol: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The numbers of some rows, their squared differences, their distances in ULPs by bucket."""
    r, c = r_raw.double(), c_raw.double()
    d, m = c - r, r.abs()
    a = d.abs()
    allowed = floor + rtol * m
    at = a.reshape(-1).argmax()
    steps = (_ordered(r_raw.to(c_raw.dtype)) - _ordered(c_raw)).abs().reshape(-1)
    buckets = (steps.float().view(torch.int32) >> SHIFT).long()
    counts = torch.zeros(BUCKETS, dtype=torch.int64, device=r.device)
    counts.scatter_add_(0, buckets, torch.ones_like(buckets))
    numbers = (
        *((r * r).sum(), (c * c).sum(), (r * c).sum(), a.sum()),
        *(_largest_ratio(a, m), _largest_ratio(a, allowed), steps.max(), a.max()),
        *(at, r.reshape(-1)[at], c.reshape(-1)[at], (a > allowed).sum()),
    )
    return torch.stack([n.double() for n in numbers]), (d * d).sum(1), counts


def _largest_ratio(top: torch.Tensor, bottom: torch.Tensor) -> torch.Tensor:
    """max(top / bottom), with 0/0 = 0 and x/0 = inf."""
    return torch.where(top > 0, top / bottom, 0.0).max()


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Integers that sort as the floats do and count every step; -0 and +0 are one."""
    bits = values.view(torch.int16 if values.element_size() == 2 else torch.int32).long()
    magnitude = bits & ((1 << (8 * values.element_size() - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)
