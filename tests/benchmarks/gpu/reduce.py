"""A trial: the sums of pairs of states, formed on the GPU where they live; numbers come back.

Not part of driftwalk yet: `verify` copies states to the host. compare.py measures what it would cost.

One Triton program walks one row (a token) of both states and leaves `FIELDS` numbers; the rows of
all pairs come back in one copy. ULP distances are counted by powers of two, in a sample of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

FIELDS = (
    *("dd", "rr", "cc", "rc", "abs_d", "max_abs", "max_abs_at", "max_rel", "exceeded"),
    *("mismatched", "bad_r", "bad_c", "bad_r_at", "bad_c_at", "ulp_max"),
)
BUCKETS = 33
"""ULP distances by their number of bits: 0, 1, 2 to 3, 4 to 7, ..."""
SAMPLED_ROWS = 256
_BLOCK = 512
_KNOWN = (torch.float16, torch.bfloat16, torch.float32)

Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RowSums:
    """What every row of a pair came to: (rows, FIELDS), and the ULP distances of a sample."""

    numbers: NDArray[np.float64]
    buckets: NDArray[np.int64]

    def __getitem__(self, field: str) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.numbers[:, FIELDS.index(field)]
        return found


def can_reduce(r: torch.Tensor, c: torch.Tensor) -> bool:
    """Whether both live on one GPU, in one format that is known here."""
    alike = r.shape == c.shape and r.dtype == c.dtype and r.device == c.device
    return alike and r.is_cuda and r.dtype in _KNOWN and r.ndim > 1 and _kernel() is not None


def reduce_pairs(
    pairs: Sequence[Pair], atol: float, rtol: float, *, by_rms: bool = False
) -> list[RowSums]:
    """Reduce pairs row by row; what is allowed is atol, or atol times the RMS of r, plus rtol |r|.

    All is queued at once; the device is waited for once, at the end.
    """
    if not pairs:
        return []
    flat = [(_rows(r), _rows(c)) for r, c in pairs]
    device = pairs[0][0].device
    counts = [len(r) for r, _ in flat]
    size = sum(counts) * len(FIELDS)
    room = torch.zeros(size + len(flat) * BUCKETS, dtype=torch.float64, device=device)
    numbers = room[:size].view(-1, len(FIELDS))
    buckets = room[size:].view(-1, BUCKETS)
    one = torch.ones((), dtype=torch.float32, device=device)
    start = 0
    for (r, c), count, into in zip(flat, counts, buckets, strict=True):
        scale = torch.linalg.vector_norm(r, dtype=torch.float32) if by_rms else one
        factor = atol / r.numel() ** 0.5 if by_rms else atol
        _launch(r, c, scale, factor, rtol, numbers[start : start + count], into)
        start += count
    host = torch.empty(room.shape, dtype=room.dtype, pin_memory=True)
    host.copy_(room, non_blocking=True)
    torch.cuda.current_stream(device).synchronize()
    told = host.numpy()
    ends = np.cumsum(counts)[:-1].tolist()
    by_pair = np.split(told[:size].reshape(-1, len(FIELDS)), ends)
    sampled = told[size:].reshape(-1, BUCKETS).astype(np.int64)
    return [RowSums(rows, count) for rows, count in zip(by_pair, sampled, strict=True)]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """(B, T, ...) as rows of tokens; (B, C) as rows."""
    leading = 2 if tensor.ndim > 2 else 1
    return tensor.flatten(leading).flatten(0, leading - 1).contiguous()


def _launch(
    r: torch.Tensor,
    c: torch.Tensor,
    scale: torch.Tensor,
    factor: float,
    rtol: float,
    numbers: torch.Tensor,
    buckets: torch.Tensor,
) -> None:
    rows, width = r.shape
    _kernel()[(rows,)](
        *(r, c, scale, numbers, buckets),
        *(width, factor, rtol, max(1, rows // SAMPLED_ROWS)),
        FIELDS=len(FIELDS),
        BUCKETS=BUCKETS,
        BITS=8 * r.element_size(),
        BLOCK=_BLOCK,
        num_warps=4,
    )


_compiled: list[Any] = []


def _kernel() -> Any:
    """The Triton kernel, compiled when first launched; None where there is no Triton."""
    if not _compiled:
        try:
            from .kernel import row_kernel

            _compiled.append(row_kernel)
        except ImportError:
            _compiled.append(None)
    return _compiled[0]
