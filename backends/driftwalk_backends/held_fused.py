"""Launches the kernels for a pair of held states, and reads what they leave."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.reduction import Reduced, Reducing
from driftwalk.tolerance import Tolerance
from driftwalk.ulp import BUCKETS, SHIFT

from . import held_kernels as k
from .tensors import as_rows

BLOCK, WARPS = 512, 2
SETTLE, SETTLE_WARPS = 2048, 8
PART = 1 << 14
"""Columns walked at a time: longer rows are shared out."""
PROGRAMS = 1056
"""As many as a large GPU runs at once; more rows than that are shared out among them."""
TOGETHER = 4
"""Pairs done side by side: alone, each spends half its time waiting for memory or for a launch."""
MOST = 255
"""Elements that one lane of a program may see, and count."""
SAMPLED, SURVEYORS = 1024, 64
"""Distances sampled to guess the 99th percentile; the guess is within some 4 % of its rank."""


def copied(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy, and the sums of squares of its rows."""
    rows = as_rows(tensor.contiguous())
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    squares = torch.empty(len(rows), dtype=torch.float64, device=tensor.device)
    with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
        k.copy[(len(rows),)](rows, copy, squares, rows.shape[1], BLOCK=4096, num_warps=8)
    return copy, squares


def fused(
    r: torch.Tensor,
    c: torch.Tensor,
    squares: torch.Tensor,
    tolerance: Tolerance,
    rows: Array | None,
) -> Reducing | None:
    """Queue the kernels for two tables of rows; None where they cannot do it.

    `squares` are those of the reference's rows, `rows` the numbers of those that count.
    """
    if not all(value == 0 or 1e-20 < value < 1e10 for value in (tolerance.atol, tolerance.rtol)):
        return None
    (total, width), device = r.shape, r.device
    count = total if rows is None else len(rows)
    parts = -(-width // PART)
    share = max(1, min(-(-count * parts // PROGRAMS), MOST // -(-min(width, PART) // BLOCK)))
    programs = -(-count * parts // share)
    room = _room(tolerance.atol, tolerance.rtol, device)
    chosen = room if rows is None else _chosen(rows.astype(np.int32).tobytes(), device)

    def launch() -> Callable[[], Array]:
        zeros = torch.zeros(k.ZEROS.value, dtype=torch.int32, device=device)
        table = torch.empty(k.TABLE.value * programs, dtype=torch.float64, device=device)
        out = torch.empty(k.HEAD.value + count * parts, dtype=torch.float64, device=device)
        k.survey[(SURVEYORS,)](
            *(r, c, chosen, squares, room, zeros, out, count, width),
            **{"ALL": rows is None, "RMS": tolerance.scale == "rms"},
            **{"SAMPLED": SAMPLED, "BLOCK": 1024, "num_warps": 4},
        )
        given = (r, c, chosen, room, zeros, table, out, count, width, parts, share)
        shape: dict[str, Any] = {"ALL": rows is None, "PART": PART}
        fast = r.dtype == c.dtype == torch.float16 and r.is_cuda
        k.look[(programs,)](*given, **shape, FAST=fast, BLOCK=BLOCK, num_warps=WARPS)
        k.settle[(programs,)](
            *given, **shape, BLOCK=SETTLE, num_warps=SETTLE_WARPS, enable_fp_fusion=False
        )
        return _copied(out)

    arrived = _line(device).put(launch)
    return lambda: _read(arrived(), count, width, parts)


class _Line:
    """Launches that wait for each other: some go together, each on a stream of its own.

    The model's own stream goes on when they are done: beside a matrix product, which takes the
    whole device, they would cost more. What is put here is launched when the line is full, or when
    somebody waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = [_stream(device) for _ in range(TOGETHER)]
        self._waiting: list[tuple[Callable[[], Callable[[], Array]], list[Any]]] = []

    def put(self, launch: Callable[[], Callable[[], Array]]) -> Callable[[], Array]:
        launched: list[Callable[[], Array]] = []
        self._waiting.append((launch, launched))
        if len(self._waiting) == TOGETHER:
            self._go()

        def arrived() -> Array:
            if not launched:
                self._go()
            return launched[0]()

        return arrived

    def _go(self) -> None:
        going, self._waiting = self._waiting, []
        if self._device.type != "cuda":
            for launch, launched in going:
                launched.append(launch())
            return
        with torch.cuda.device(self._device):
            own = torch.cuda.current_stream()
            for stream in self._streams:
                stream.wait_stream(own)
            for stream, (launch, launched) in zip(self._streams, going, strict=False):
                with torch.cuda.stream(stream):
                    launched.append(launch())
            for stream in self._streams:
                own.wait_stream(stream)


@cache
def _line(device: torch.device) -> _Line:
    return _Line(device)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


@lru_cache(maxsize=16)
def _room(atol: float, rtol: float, device: torch.device) -> torch.Tensor:
    """In float64, which a kernel takes no numbers of its own in."""
    return torch.tensor([atol, rtol], dtype=torch.float64).to(device)


@lru_cache(maxsize=16)
def _chosen(rows: bytes, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(rows, np.int32).copy()).to(device)


def _copied(out: torch.Tensor) -> Callable[[], Array]:
    """Have it copied to the host when it is there; the array, once that is done."""
    if not out.is_cuda:
        return out.numpy
    host = torch.empty(out.shape, dtype=out.dtype, pin_memory=True)
    host.copy_(out, non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()

    def arrived() -> Array:
        done.synchronize()
        return host.numpy()

    return arrived


def _read(told: Array, count: int, width: int, parts: int) -> Reduced | None:
    """The numbers by name; None where something is left to the host."""
    head, row_dd = told[: k.HEAD.value], told[k.HEAD.value :].reshape(count, parts).sum(axis=1)
    elements = count * width
    ulps = _ulps(head, elements)
    if head[k.POISON.value] or ulps is None:
        return None
    rr, cc, rc = (float(head[at.value]) for at in (k.RR, k.CC, k.RC))
    dd = float(row_dd.sum())
    if dd < 1e-3 * rr:
        # Of states this near, the small difference says more than a large product.
        rc = (rr + cc - dd) / 2
    return Reduced(
        count=elements,
        rr=rr,
        cc=cc,
        rc=rc,
        abs_d=float(head[k.ABS.value]),
        row_dd=row_dd,
        scale=float(head[k.SCALE.value]),
        max_rel=float(head[k.REL.value]),
        exceeded=float(head[k.OVER.value]),
        mismatched=int(head[k.BEYOND.value]),
        worst_at=divmod(int(head[k.PLACE.value]), width),
        worst=(float(head[k.WORST_R.value]), float(head[k.WORST_C.value])),
        ulp_max=int(head[k.FAR.value]),
        ulps=ulps,
    )


def _ulps(head: Array, elements: int) -> Array | None:
    """Distances by bucket, as far as they were told apart; None if that is not far enough."""
    first, *above = head[[k.FIRST.value, *range(k.ABOVE.value, k.BEYOND.value)]].tolist()
    edges = _edges(first)
    counts = np.zeros(BUCKETS, np.int64)
    counts[0] = elements - above[0]
    for edge, number, later in zip(edges, above, [*above[1:], 0], strict=False):
        counts[_bucket(edge)] = number - later
    # The last holds all from there on, and the first all up to there.
    rank = 0.99 * elements
    known = (elements - above[0] < rank or first <= 1) and (
        elements - above[-1] >= rank or head[k.FAR.value] < edges[-1]
    )
    return counts if known else None


@lru_cache(maxsize=256)
def _edges(first: float) -> tuple[float, ...]:
    """The distances that were counted from, and the next."""
    edges = [first]
    for _ in range(k.EDGES.value):
        edges.append(max(_start(_bucket(edges[-1]) + 1), edges[-1] + 1))
    return tuple(edges)


def _bucket(distance: float) -> int:
    return int(np.float32(distance).view(np.uint32)) >> SHIFT


def _start(bucket: int) -> float:
    return float(np.uint32(bucket << SHIFT).view(np.float32))
