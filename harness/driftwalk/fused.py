"""The fused comparator: one pass in compiled code (native/compare.c) over pairs of float32 states.

Where there is none, metrics.py does the same in numpy, some twenty times slower. Counts, maxima,
places and ULPs are equal; sums agree to a few parts in ten million.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dtypes import FORMATS, Array, format_of
from .native import Found, library
from .sums import Numbers, Pair, Sums
from .tolerance import Tolerance
from .ulp import BUCKETS, UlpHistogram
from .workers import in_threads, workers

_FORMATS = ("fp32", "fp16", "bf16")
_ALONE = 1 << 16
"""States with fewer elements are not worth waking a thread for."""
_PRECISE = 1 << 14
"""Those with fewer are summed in float64: there is no time to be won."""
_NARROWEST = 5
"""Logits that a row must have: as many as are ranked."""
_SAMPLE = 128
"""Runs of 16 elements that are looked at beforehand."""
_FARTHEST = 1 << 22
"""What compare.c can tell apart from values of unlike signs."""

_COLUMNS = 6
"""row_t of compare.c: rr, cc, rc, dd, abs, most."""
_MOST = 5

CHOICE = np.dtype(
    [(name, np.float64) for name in ("kl", "overlap", "first", "second", "theirs")]
    + [("best", np.int64, 2), ("finite", np.int64)]
)
"""choice_t of logits.c."""


@dataclass(frozen=True)
class _Part:
    """Some rows of a pair, for one thread, and where their numbers stand among those of all."""

    pair: Pair
    first: int
    rows: Numbers

    @property
    def pointers(self) -> tuple[int, int, int, int, int]:
        r, c = self.pair.r, self.pair.c
        return r.ctypes.data, c.ctypes.data, self.rows.ctypes.data, len(self.rows), r.shape[1]

    def of(self, numbers: Array) -> int:
        """Where in memory the numbers of these rows begin."""
        return numbers.ctypes.data + self.first * numbers.strides[0]


def _parts(pair: Pair) -> list[_Part]:
    number = 1 if pair.r.size < _ALONE else 2 * workers()
    step = -(-len(pair.rows) // number)
    starts = range(0, len(pair.rows), step)
    return [_Part(pair, start, pair.rows[start : start + step]) for start in starts]


def usable(pair: Pair) -> bool:
    """Whether this pair can be compared by compiled code here."""
    known = [format_of(x) for x in (pair.r, pair.c)]
    fits = all(
        one is not None and one.name in _FORMATS and x.dtype.isnative
        for one, x in zip(known, (pair.r, pair.c), strict=True)
    )
    return fits and pair.r.size > 0 and len(pair.rows) > 0 and library() is not None


def add_fused(sums: Sums, given: Pair, tolerance: Tolerance) -> float:
    """All numbers of a pair of states, in one pass where that will do; gives the scale."""
    pair = given.widened
    parts = _parts(pair)
    rest = _rest(pair)
    numbers = np.empty((len(pair.rows), _COLUMNS))
    seen = in_threads(lambda part: _compare(part, rest, numbers), parts)
    found = [each for each, _ in seen]
    sums.bad_reference, sums.bad_candidate = (sum(f.bad[side] for f in found) for side in (0, 1))
    sums.bad_reference_at, sums.bad_candidate_at = (_first_bad(found, side) for side in (0, 1))
    bad = sum(f.bad_either for f in found)
    sums.count = pair.rows.size * pair.r.shape[1] - bad
    sums.rr, sums.cc, sums.rc, sums.dd, sums.abs_d, _ = numbers.sum(axis=0).tolist()
    row_l2 = np.sqrt(numbers[:, 3])
    sums.row_l2.append(np.where(np.isinf(numbers[:, _MOST]), np.inf, row_l2) if bad else row_l2)
    sums.max_rel = max(f.max_rel for f in found)
    worst = max(found, key=lambda f: f.max_abs)  # the first of equals
    if worst.max_abs >= 0:
        sums.max_abs, sums.worst_at = worst.max_abs, (worst.worst[0], worst.worst[1])
    scale = _rms(sums, found) if tolerance.scale == "rms" else 1.0
    if given.c.dtype.itemsize == 2:
        _add_steps(sums, given, parts)
    else:
        _add_ulps(sums, parts, seen, rest, numbers)
    # Who is nearer than `rest` steps is nearer than this, too; if that could be more, look again.
    if sums.max_rel < (rest - 1) * 2.0**-22:
        sums.max_rel = _beyond(parts, numbers, 0.0, 1.0, sums.max_rel)[1]
    _add_exceeded(sums, parts, numbers, tolerance, scale)
    if bad:
        sums.exceeded, sums.mismatched = math.inf, sums.mismatched + bad
    return scale


def _rms(sums: Sums, found: list[Found]) -> float:
    """Of all that is finite in the reference, also where the candidate is not."""
    total = sums.rr + sum(f.lone_rr for f in found)
    count = sums.count + sum(f.lone for f in found)
    return math.sqrt(total / count) if count else 0.0


def _rest(pair: Pair) -> int:
    """A distance that a few per cent reach, judging by some of all."""
    known = library()
    assert known is not None
    r, c = pair.r.ctypes.data, pair.c.ctypes.data
    return int(known.driftwalk_sample(r, c, pair.r.size, _SAMPLE, _FARTHEST))


_Seen = tuple[Found, NDArray[np.int64]]
"""What is known of a part, and its distances by bucket."""


def _compare(part: _Part, rest: int, numbers: Array) -> _Seen:
    known = library()
    assert known is not None
    counts = np.zeros(BUCKETS, np.int64)
    precise = part.pair.r.size < _PRECISE
    found = Found(max_abs=-1.0, ulps=counts.ctypes.data, rest=rest, precise=precise)
    known.driftwalk_compare(*part.pointers, part.of(numbers), ctypes.byref(found))
    return found, counts


def _first_bad(found: list[Found], side: int) -> tuple[int, int] | None:
    places = [f.bad_at[side] for f in found if f.bad[side]]
    return (places[0][0], places[0][1]) if places else None


def _add_ulps(sums: Sums, parts: list[_Part], seen: list[_Seen], rest: int, numbers: Array) -> None:
    """The distances that were counted; all of them told apart where the sample was misleading."""
    sums.ulps = UlpHistogram(FORMATS["fp32"])
    highest = max(found.ulp_max for found, _ in seen)
    sums.ulps.add_counts(np.sum([counts for _, counts in seen], axis=0), rest, highest)
    if rest > 1 and (highest < rest or not sums.ulps.knows(0.99)):
        again = in_threads(lambda part: _compare(part, 1, numbers), parts)
        _add_ulps(sums, parts, again, 1, numbers)


def _add_steps(sums: Sums, given: Pair, parts: list[_Part]) -> None:
    """The distances in the candidate's own format of 16 bits."""
    known = library()
    assert known is not None
    kind = given.c.dtype
    a, b = (np.ascontiguousarray(x, kind) for x in (given.r, given.c))

    def look(part: _Part) -> tuple[int, NDArray[np.int64]]:
        counts = np.zeros(BUCKETS, np.int64)
        bits = a.ctypes.data, b.ctypes.data
        return known.driftwalk_steps16(*part.pointers, *bits, counts.ctypes.data), counts

    seen = in_threads(look, parts)
    assert sums.ulps is not None
    total = np.sum([counts for _, counts in seen], axis=0)
    sums.ulps.add_counts(total, 1, max(top for top, _ in seen))


def _add_exceeded(
    sums: Sums, parts: list[_Part], numbers: Array, tolerance: Tolerance, scale: float
) -> None:
    """Count elements beyond their allowance, and find how far the worst is beyond it."""
    floor = tolerance.atol * scale
    least = 0.0
    if sums.worst_at is not None and sums.max_abs > 0:
        pair = parts[0].pair
        allowed = floor + tolerance.rtol * abs(float(pair.r[sums.worst_at]))
        least = sums.max_abs / allowed if allowed > 0 else 0.0
    sums.mismatched, sums.exceeded = _beyond(parts, numbers, floor, tolerance.rtol, least)


def _beyond(
    parts: list[_Part], numbers: Array, floor: float, rtol: float, least: float
) -> tuple[int, float]:
    """How many |c - r| exceed floor + rtol * |r|, and the largest ratio of both."""
    if not numbers[:, _MOST].max() > min(floor, least * floor):
        return 0, least
    known = library()
    assert known is not None

    def look(part: _Part) -> tuple[int, float]:
        ratio = ctypes.c_double(least)
        given = (*part.pointers, part.of(numbers), floor, rtol)
        return known.driftwalk_beyond(*given, ctypes.byref(ratio)), ratio.value

    seen = in_threads(look, parts)
    return sum(count for count, _ in seen), max(ratio for _, ratio in seen)


def decide(reference: Array, candidate: Array, rows: Numbers) -> Array | None:
    """What rows of logits decide; None where compiled code cannot tell."""
    pair = Pair(reference, candidate, rows)
    if not usable(pair) or reference.shape[1] < _NARROWEST:
        return None
    known = library()
    assert known is not None
    choices = np.empty(len(rows), CHOICE)

    def look(part: _Part) -> None:
        known.driftwalk_decide(*part.pointers, part.of(choices))

    in_threads(look, _parts(pair.widened))
    return choices
