"""The fused comparator: one pass in compiled code (native/compare.c) over pairs of float32 states.

Where there is none, metrics.py does the same in numpy, some twenty times slower. Counts, maxima,
places and ULPs are equal; sums agree to a few parts in ten million.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array, format_of
from ..native import Total, library
from ..tolerance import Tolerance
from ..workers import in_threads, sharers
from .halves import narrowed
from .metric_list import Numbers, Pair, Sums
from .ulp import BUCKETS, UlpHistogram

_FORMATS = ("fp32", "fp16", "bf16")
_ALONE = 1 << 19
"""States with fewer elements are not worth waking a thread for: it takes as long as 2**18 do."""
_PRECISE = 1 << 14
"""Those with fewer are summed in float64: there is no time to be won."""
_NARROWEST = 5
"""Logits that a row must have: as many as are ranked."""
_SAMPLED = 0
"""Let compare.c find out by a sample which distances are rare."""
_ROW = 6
"""Numbers of a row: row_t of compare.h."""

CHOICE = np.dtype(
    [(name, np.float64) for name in ("kl", "overlap", "first", "second", "theirs")]
    + [("best", np.int64, 2), ("finite", np.int64)]
)
"""choice_t of logits.c."""


class _Table:
    """A pair as compiled code sees it: addresses, and rows that threads share."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.count, self.width = len(pair.rows), pair.r.shape[1]
        self._at = pair.r.ctypes.data, pair.c.ctypes.data, pair.rows.ctypes.data
        threads = 1 if pair.r.size < _ALONE else sharers()
        self._step = -(-self.count // (1 if threads == 1 else 2 * threads))
        self.parts = range(0, self.count, self._step)
        """The first row of each part."""

    def of(self, first: int) -> tuple[int, int, int, int, int]:
        """What every compiled function is told of a part."""
        r, c, rows = self._at
        return r, c, rows + 8 * first, min(self._step, self.count - first), self.width


def _native() -> ctypes.CDLL:
    native = library()
    assert native is not None
    return native


@cache
def _found_size() -> int:
    return int(_native().driftwalk_found_size())


def usable(pair: Pair) -> bool:
    """Whether this pair can be compared by compiled code here."""
    if not (pair.r.size > 0 and len(pair.rows) > 0 and library() is not None):
        return False
    formats = format_of(pair.r), format_of(pair.c)
    fits = all(one is not None and one.name in _FORMATS for one in formats)
    return fits and pair.r.dtype.isnative and pair.c.dtype.isnative


def add_fused(sums: Sums, given: Pair, tolerance: Tolerance) -> float:
    """All numbers of a pair of states, in one pass where that will do; gives the scale."""
    table = _Table(given.widened)
    numbers = np.empty((table.count, _ROW))
    total, row_l2 = _compare(table, _SAMPLED, numbers)
    half = given.c.dtype.itemsize == 2  # distances are counted in its own steps
    while not (half or total.known):  # the sample was misleading: tell more distances apart
        fewer = total.rest // 8 if total.rest >= 64 else 1  # still the edge of a bucket
        total, row_l2 = _compare(table, fewer, numbers)
    bad: int = total.bad_either
    if bad:
        sums.bad_reference, sums.bad_candidate = total.bad
        sums.bad_reference_at, sums.bad_candidate_at = (_first_bad(total, side) for side in (0, 1))
    sums.count = table.count * table.width - bad
    sums.rr, sums.cc, sums.rc = total.rr, total.cc, total.rc
    sums.dd, sums.abs_d = total.dd, total.abs
    sums.row_l2.append(row_l2)
    if total.max_abs >= 0:
        sums.max_abs, sums.worst_at = total.max_abs, (total.worst[0], total.worst[1])
    if half:
        _add_steps(sums, given, table, not bad)
    else:
        sums.ulp_max, sums.ulp_p99 = total.ulp_max, total.ulp_p99
    sums.max_rel = total.max_rel
    # Who is nearer than `rest` steps is nearer than this, too; if that could be more, look again.
    if sums.max_rel < (total.rest - 1) * 2.0**-22:
        sums.max_rel = _beyond(table, numbers, 0.0, 1.0, sums.max_rel)[1]
    scale: float = total.rms if tolerance.scale == "rms" else 1.0
    _add_exceeded(sums, table, numbers, tolerance, scale, total.most)
    if bad:
        sums.exceeded, sums.mismatched = math.inf, sums.mismatched + bad
    return scale


def _compare(table: _Table, rest: int, numbers: Array) -> tuple[Total, NDArray[np.float64]]:
    """What all rows came to, and the error of each; their numbers are left for `_beyond`."""
    native, size = _native(), _found_size()
    found = np.empty((len(table.parts), size), np.uint8)
    at, rows_at = found.ctypes.data, numbers.ctypes.data
    precise = table.pair.r.size < _PRECISE

    def look(first: int) -> None:
        own = at + table.parts.index(first) * size
        out = rows_at + first * numbers.strides[0]
        native.driftwalk_compare(*table.of(first), rest, precise, out, own)

    in_threads(look, table.parts)
    total, row_l2 = Total(), np.empty(table.count)
    native.driftwalk_settle(
        *(rows_at, table.count, table.width, at, len(found)),
        *(row_l2.ctypes.data, ctypes.byref(total)),
    )
    return total, row_l2


def _first_bad(total: Total, side: int) -> tuple[int, int] | None:
    at = total.bad_at[side]
    return (at[0], at[1]) if total.bad[side] else None


def _add_steps(sums: Sums, given: Pair, table: _Table, clean: bool) -> None:
    """The distances in the candidate's own format of 16 bits."""
    native, kind = _native(), given.c.dtype
    a, b = (narrowed(x, kind) for x in (given.r, given.c))

    def look(first: int) -> tuple[int, NDArray[np.int64]]:
        counts = np.zeros(BUCKETS, np.int64)
        bits = a.ctypes.data, b.ctypes.data
        found = native.driftwalk_steps16(*table.of(first), *bits, clean, counts.ctypes.data)
        return found, counts

    seen = in_threads(look, table.parts)
    ulps = UlpHistogram()
    ulps.add_counts(np.sum([counts for _, counts in seen], axis=0), max(top for top, _ in seen))
    sums.ulp_max, sums.ulp_p99 = ulps.max, ulps.quantile(0.99)


def _add_exceeded(
    sums: Sums, table: _Table, numbers: Array, tolerance: Tolerance, scale: float, most: float
) -> None:
    """Count elements beyond their allowance, and find how far the worst is beyond it."""
    floor = tolerance.atol * scale
    if sums.worst_at is not None and sums.max_abs > 0:
        allowed = floor + tolerance.rtol * abs(float(table.pair.r[sums.worst_at]))
        sums.exceeded = sums.max_abs / allowed if allowed > 0 else 0.0
    if most > min(floor, sums.exceeded * floor):
        found = _beyond(table, numbers, floor, tolerance.rtol, sums.exceeded)
        sums.mismatched, sums.exceeded = found


def _beyond(
    table: _Table, numbers: Array, floor: float, rtol: float, least: float
) -> tuple[int, float]:
    """How many |c - r| exceed floor + rtol * |r|, and the largest ratio of both."""
    native, rows_at = _native(), numbers.ctypes.data

    def look(first: int) -> tuple[int, float]:
        ratio = ctypes.c_double(least)
        given = (*table.of(first), rows_at + first * numbers.strides[0], floor, rtol)
        return native.driftwalk_beyond(*given, ctypes.byref(ratio)), ratio.value

    seen = in_threads(look, table.parts)
    return sum(count for count, _ in seen), max(ratio for _, ratio in seen)


def decide(reference: Array, candidate: Array, rows: Numbers) -> Array | None:
    """What rows of logits decide; None where compiled code cannot tell."""
    pair = Pair(reference, candidate, rows)
    if not usable(pair) or reference.shape[1] < _NARROWEST:
        return None
    table = _Table(pair.widened)
    choices = np.empty(table.count, CHOICE)
    at, native = choices.ctypes.data, _native()

    def look(first: int) -> None:
        native.driftwalk_decide(*table.of(first), at + first * CHOICE.itemsize)

    in_threads(look, table.parts)
    return choices
