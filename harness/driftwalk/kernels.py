"""What two float32 blocks have in common, in few passes over data that stays in a core's cache.

Three things make it fast, and none of them changes a verdict:
- Where both values have one sign and lie within a factor of two, float32 subtracts without any
  rounding (Sterbenz). The distance in ULPs, an integer subtraction, says where that holds; a block
  in which it does not hold everywhere is summed in float64.
- Maxima of ratios are first bounded, and only elements that can reach them are divided, in float64.
- Sums are formed in float32 over at most `CHUNK` elements and added up in float64. Their relative
  error is below CHUNK * 2**-24 = 6e-5 for any order of adding, and about 1e-8 in practice: the
  roundings of many chunks cancel. Short states, and blocks that differ by more than 3 % or whose
  squares leave the range of float32, are summed in float64.
Counts, maxima, ULPs and places are always exact.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import FORMATS, Array
from .ulp import Counts, Plan, ulp_distance

CHUNK = 1024
PRECISE = 1 << 14
"""States with fewer elements are summed in float64: there is no time to be won."""

_WILD = 1 << 23
"""Steps of float32 within which two values have one sign and differ by at most a factor of two."""
_NORMAL = np.float32(2.0**-126)
_LOW = 2.0**-80
_CLOSE = 1e-3

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Glance:
    """The sums of one block, and how large its ratios can be."""

    rr: float
    cc: float
    rc: float
    abs_d: float
    row_dd: Float64
    max_abs: float
    ulps: Counts
    max_rel: float = 0.0
    """Of the elements that lie furthest apart."""
    rel_bound: float = 0.0
    """No other element's |difference| / |reference| is larger."""


@dataclass(frozen=True)
class _Sums:
    rr: float
    cc: float
    rc: float
    abs_d: float
    row_dd: Float64
    max_abs: float


class _Scratch(threading.local):
    """Room for one block per thread, kept: fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)

    def room(self, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        size = math.prod(shape)
        if self._bytes.size < 5 * size:
            self._bytes = np.empty(5 * size, np.uint8)
        floats = self._bytes[: 4 * size].view(np.float32).reshape(shape)
        return floats, self._bytes[4 * size : 5 * size].view(np.bool_)


scratch = _Scratch()


def glance(r: Array, c: Array, plan: Plan, *, precise: bool) -> Glance | None:
    """All sums of a pair of contiguous float32 blocks; None where an element is not finite."""
    room, flags = scratch.room(r.shape)
    raw = _raw_steps(r, c, room)
    seen = _count(raw, r, c, plan, flags)
    if not seen.top and not seen.far.size:
        return _identical(r, precise, seen.ulps)
    r_some, c_some = (x.reshape(-1)[seen.candidates].astype(np.float64) for x in (r, c))
    if seen.far.size and not (np.isfinite(r_some).all() and np.isfinite(c_some).all()):
        return None
    max_rel = largest_ratio(np.abs(c_some - r_some), np.abs(r_some))
    # Below the normal range a step is no longer a fixed part of the value.
    tiny = np.minimum.reduce(np.absolute(r, out=room).reshape(-1)) < _NORMAL
    bound = math.inf if tiny else seen.rel_bound
    many = seen.far.size > r.size >> 6
    sums = None if precise or many else _sums32(r, c, room, seen.far)
    sums = sums or _sums64(r, c)
    if sums is None:
        return None
    return Glance(
        sums.rr, sums.cc, sums.rc, sums.abs_d, sums.row_dd, sums.max_abs, seen.ulps, max_rel, bound
    )


def _raw_steps(r: Array, c: Array, room: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Steps between both, flat; where signs differ, some number beyond `_WILD` instead."""
    steps = room.reshape(-1).view(np.int32)
    np.subtract(c.reshape(-1).view(np.int32), r.reshape(-1).view(np.int32), out=steps)
    return np.absolute(steps, out=steps).view(np.uint32)


@dataclass(frozen=True)
class _Seen:
    """What the distances of a block tell."""

    ulps: Counts
    top: int
    candidates: NDArray[Any]
    """Where the largest relative difference may stand."""
    rel_bound: float
    """What it is at most anywhere else."""
    far: NDArray[Any]
    """Where signs differ, or one value is more than twice the other."""


def _count(
    raw: NDArray[np.uint32], r: Array, c: Array, plan: Plan, flags: NDArray[np.bool_]
) -> _Seen:
    """Distances counted as planned.

    Of two values that are near, one step is between 2**-25 and 2**-22 of either: who is to have the
    largest relative difference must have an eighth of the largest distance, or be far.
    """
    above = [int(np.count_nonzero(np.greater_equal(raw, e, out=flags))) for e in plan.counted]
    at = np.greater_equal(raw, plan.rest, out=flags).nonzero()[0]
    rest: NDArray[Any] = raw[at]
    top = int(rest.max()) if rest.size else int(np.maximum.reduce(raw))
    near, far = top, at[:0]
    if top > _WILD:
        wild = rest > _WILD
        far = at[wild]
        near = int(np.max(rest[~wild], initial=0)) or int(
            np.max(raw, where=raw <= _WILD, initial=0)
        )
    reaches = near >> 3 >= plan.rest
    candidates = at[rest >= near >> 3] if reaches else far
    if far.size:
        steps = rest.astype(np.uint64)
        steps[wild] = ulp_distance(r.reshape(-1)[far], c.reshape(-1)[far], FORMATS["fp32"])
        rest, top = steps, max(near, int(steps.max()))
    edges = [*above, int(at.size)]
    between = tuple(a - b for a, b in pairwise(edges))
    below = raw.size - edges[0]
    bound = 0.0 if reaches else near * 2.0**-22
    return _Seen(Counts(below, between, rest, top), top, candidates, bound, far)


def _identical(r: Array, precise: bool, ulps: Counts) -> Glance | None:
    rr = math.nan if precise else float(row_dots(r, r).sum(dtype=np.float64))
    if not _LOW < rr < math.inf:
        values = r.astype(np.float64)
        rr = float(np.einsum("ij,ij->i", values, values).sum())
    if not math.isfinite(rr):
        return None
    return Glance(rr, rr, rr, 0.0, np.zeros(len(r)), 0.0, ulps)


def _sums32(r: Array, c: Array, room: NDArray[np.float32], far: NDArray[Any]) -> _Sums | None:
    """The sums by float32 products, but of the far elements; None where float64 is called for."""
    d = np.subtract(c, r, out=room)
    d.reshape(-1)[far] = 0
    row_rr, row_dd = row_dots(r, r), row_dots(d, d).astype(np.float64)
    rr, rd = (float(rows.sum(dtype=np.float64)) for rows in (row_rr, row_dots(r, d)))
    a = np.absolute(d, out=d)
    row_abs = row_sums(a)
    total = float(row_abs.sum(dtype=np.float64))
    largest = float(np.maximum.reduce(a.reshape(-1)))
    if not row_rr.min() > _LOW or (row_dd.min() < _LOW and row_abs[row_dd < _LOW].any()):
        return None
    if far.size:
        r_far = r.reshape(-1)[far].astype(np.float64)
        gap = c.reshape(-1)[far].astype(np.float64) - r_far
        np.add.at(row_dd, far // r.shape[1], gap * gap)
        rd += float(r_far @ gap)
        size = np.abs(gap)
        total, largest = total + float(size.sum()), max(largest, float(size.max()))
    dd = float(row_dd.sum())
    if not dd < _CLOSE * rr < math.inf:
        return None
    return _Sums(rr, rr + 2 * rd + dd, rr + rd, total, row_dd, largest)


def _sums64(r_raw: Array, c_raw: Array) -> _Sums | None:
    """The same in float64, in which no square of a float32 is lost; None where one is not finite.

    The products of rows are left to einsum: BLAS would start threads inside of ours.
    """
    r, d = r_raw.astype(np.float64), c_raw.astype(np.float64)
    rr = float(np.einsum("ij,ij->i", r, r).sum())
    cc = float(np.einsum("ij,ij->i", d, d).sum())
    rc = float(np.einsum("ij,ij->i", r, d).sum())
    if not math.isfinite(rr + cc):
        return None
    d -= r
    row_dd = np.einsum("ij,ij->i", d, d)
    np.absolute(d, out=d)
    return _Sums(rr, cc, rc, float(d.sum()), row_dd, float(d.max()))


def row_dots(x: Array, y: Array) -> Array:
    """Products of rows, in pieces short enough for float32.

    By einsum: `vecdot` and `matmul` keep the interpreter's lock, BLAS starts threads of its own.
    """
    rows, width = x.shape
    if width <= CHUNK:
        found: Array = np.einsum("ij,ij->i", x, y)
        return found
    whole = width - width % CHUNK
    total: Array = np.einsum("ij,ij->i", x[:, whole:], y[:, whole:]).astype(np.float64)
    if rows == 1:  # a row of logits: one call for all its pieces
        x, y = x[0, :whole].reshape(-1, CHUNK), y[0, :whole].reshape(-1, CHUNK)
        total += np.einsum("ij,ij->i", x, y).sum(dtype=np.float64)
        return total
    for start in range(0, whole, CHUNK):
        part = slice(start, start + CHUNK)
        total += np.einsum("ij,ij->i", x[:, part], y[:, part])
    return total


def row_sums(x: Array) -> Array:
    """Sums of rows, likewise."""
    rows, width = x.shape
    if width <= CHUNK:
        found: Array = np.einsum("ij->i", x)
        return found
    whole = width - width % CHUNK
    total: Array = np.einsum("ij->i", x[:, whole:]).astype(np.float64)
    pieces = x[:, :whole].reshape(rows, -1, CHUNK)
    total += np.einsum("ijk->ij", pieces).sum(axis=1, dtype=np.float64)
    return total


# -- ratios, only where they can matter ------------------------------------------------------------


def largest_ratio(top: Float64, bottom: Float64) -> float:
    """max(top / bottom), with 0/0 = 0 and x/0 = inf."""
    ratio = np.divide(top, bottom, out=np.where(top > 0, np.inf, 0.0), where=bottom > 0)
    return float(ratio.max(initial=0.0))


def largest_relative(r: Array, c: Array) -> float:
    """The largest |c - r| / |r| of two finite float32 blocks.

    Divided in float32 first; all that comes within roundoff of the largest, again in float64.
    """
    room, flags = scratch.room(r.shape)
    size = np.absolute(r)
    if np.minimum.reduce(size.reshape(-1)) >= _NORMAL:
        quotient = np.absolute(np.subtract(c, r, out=room), out=room)
        quotient /= size
        top = np.maximum.reduce(quotient.reshape(-1))
        if math.isfinite(top):
            edge = np.float32(float(top) * (1 - 2.0**-20))
            at = np.greater_equal(quotient.reshape(-1), edge, out=flags).nonzero()[0]
            r, c = r.reshape(-1)[at], c.reshape(-1)[at]
    wide = r.astype(np.float64)
    return largest_ratio(np.abs(c.astype(np.float64) - wide), np.abs(wide))


def place_of(r: Array, c: Array, gap: float) -> int:
    """Where in a block the first |c - r| of that size, its largest, stands."""
    room, flags = scratch.room(r.shape)
    a = np.absolute(np.subtract(c, r, out=room), out=room).reshape(-1)
    at = np.greater_equal(a, np.float32(gap * (1 - 2.0**-20)), out=flags).nonzero()[0]
    exact = np.abs(c.reshape(-1)[at].astype(np.float64) - r.reshape(-1)[at].astype(np.float64))
    return int(at[np.argmax(exact)])


def beyond(r: Array, c: Array, floor: float, rtol: float, least: float) -> tuple[int, float]:
    """How many |c - r| exceed floor + rtol * |r|; the largest ratio of both, if above `least`."""
    room, flags = scratch.room(r.shape)
    a = np.absolute(np.subtract(c, r, out=room), out=room).reshape(-1)
    # float32 may round a difference down by half a step.
    edge = np.float32(min(floor, least * floor) * (1 - 2.0**-20))
    at = np.greater_equal(a, edge, out=flags).nonzero()[0]
    r_at = r.reshape(-1)[at].astype(np.float64)
    gap = np.abs(c.reshape(-1)[at].astype(np.float64) - r_at)
    allowed = floor + rtol * np.abs(r_at)
    return int(np.count_nonzero(gap > allowed)), largest_ratio(gap, allowed)
