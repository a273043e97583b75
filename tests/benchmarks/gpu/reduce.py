"""A trial: the sums of pairs of states, formed on the GPU where they live; numbers come back.

Not part of driftwalk yet: `verify` copies states to the host. compare.py says what it would cost.

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
    alike: dict[tuple[Any, ...], list[int]] = {}
    flat = [(_rows(r), _rows(c)) for r, c in pairs]
    for number, (r, _) in enumerate(flat):
        alike.setdefault((r.shape, r.dtype), []).append(number)
    queued = [
        (numbers, _queue([flat[n] for n in numbers], atol, rtol, by_rms))
        for numbers in alike.values()
    ]
    torch.cuda.current_stream(pairs[0][0].device).synchronize()
    found: dict[int, RowSums] = {}
    for numbers, host in queued:
        found |= dict(
            zip(numbers, _read(host, len(numbers), len(flat[numbers[0]][0])), strict=True)
        )
    return [found[number] for number in range(len(pairs))]


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """(B, T, ...) as rows of tokens; (B, C) as rows."""
    leading = 2 if tensor.ndim > 2 else 1
    return tensor.flatten(leading).flatten(0, leading - 1).contiguous()


def _queue(pairs: Sequence[Pair], atol: float, rtol: float, by_rms: bool) -> torch.Tensor:
    """Pairs of one shape, in one launch; the memory on the host that the numbers will come to."""
    first = pairs[0][0]
    (rows, width), device = first.shape, first.device
    size = len(pairs) * rows * len(FIELDS)
    room = torch.zeros(size + len(pairs) * BUCKETS, dtype=torch.float64, device=device)
    places = torch.tensor([[r.data_ptr(), c.data_ptr()] for r, c in pairs]).T.contiguous()
    places = places.to(device, non_blocking=True)
    scales = torch.ones(len(pairs), dtype=torch.float32, device=device)
    if by_rms:
        norms = torch._foreach_norm([r for r, _ in pairs], 2, dtype=torch.float32)
        scales = torch.stack(list(norms))
    _kernel()[(rows, len(pairs))](
        *(places[0], places[1], scales, room, room[size:], rows, width),
        *(atol / first.numel() ** 0.5 if by_rms else atol, rtol, max(1, rows // SAMPLED_ROWS)),
        FIELDS=len(FIELDS),
        BUCKETS=BUCKETS,
        FLOAT=_float(first.dtype),
        BITS=8 * first.element_size(),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    host = torch.empty(room.shape, dtype=room.dtype, pin_memory=True)
    return host.copy_(room, non_blocking=True)


def _read(host: torch.Tensor, pairs: int, rows: int) -> list[RowSums]:
    told = host.numpy()
    size = pairs * rows * len(FIELDS)
    numbers = told[:size].reshape(pairs, rows, len(FIELDS))
    buckets = told[size:].reshape(pairs, BUCKETS).astype(np.int64)
    return [RowSums(one, count) for one, count in zip(numbers, buckets, strict=True)]


def _float(dtype: torch.dtype) -> Any:
    import triton.language as tl

    known = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
    return known[dtype]


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
