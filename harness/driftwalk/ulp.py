"""Distance in units in the last place: how many floats of a format lie between two values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dtypes import Array, Format

_SUB_BITS = 3
"""Mantissa bits kept per octave in the histogram: counts to 15 are exact, above to 1/8 octave."""
_SHIFT = 23 - _SUB_BITS
_BUCKETS = 256 << _SUB_BITS


def ulp_distance(reference: Array, candidate: Array, known: Format) -> NDArray[np.uint64]:
    """Representable steps of `known` between both values, each first rounded to that format."""
    a, b = _ordered(reference, known), _ordered(candidate, known)
    return np.where(a > b, a - b, b - a).astype(np.uint64)


def _ordered(values: Array, known: Format) -> NDArray[np.uint64]:
    """Map floats to integers that sort the same way and count every step; -0 and +0 are one."""
    rounded = np.ascontiguousarray(values.astype(known.dtype, copy=False))
    width = rounded.dtype.itemsize * 8
    bits = rounded.view(f"u{rounded.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    magnitude = bits & np.uint64((1 << (width - 1)) - 1)
    return np.where(bits & sign, sign - magnitude, sign + magnitude).astype(np.uint64)


def _buckets(distance: Array) -> NDArray[np.uint32]:
    """A float32's exponent and top mantissa bits are a logarithmic bucket number."""
    return distance.astype(np.float32).view(np.uint32) >> np.uint32(_SHIFT)


def _start(bucket: int) -> float:
    """The smallest distance in a bucket."""
    return float(np.uint32(bucket << _SHIFT).view(np.float32))


@dataclass(frozen=True)
class Counts:
    """Distances of one block as a plan has them counted."""

    below: int
    """How many lie below the plan's first edge."""
    between: tuple[int, ...]
    """How many from each of its edges to the next."""
    rest: Array
    """All distances from its last edge on."""
    max: int


@dataclass(frozen=True)
class Plan:
    """Which distances must be told apart for a high quantile; the rest need only be counted.

    `counted` are the edges of neighbouring buckets into which too many fall to look at each.
    """

    counted: tuple[int, ...]
    rest: int

    @property
    def edge(self) -> int:
        return self.counted[0] if self.counted else self.rest


def _bucket(distance: int) -> int:
    return int(_buckets(np.array([distance]))[0])


EVERYTHING = Plan((), 1)
"""Tells all distances apart: below 1 there is only 0."""

_MOST_COUNTED = 8


def make_plan(sample: Array) -> Plan:
    """A plan by which the 99th percentile will be known, judging by some of the distances."""
    if not sample.size:
        return EVERYTHING
    ordered = np.sort(sample)

    def share(edge: int) -> float:
        return 1 - float(np.searchsorted(ordered, edge)) / ordered.size

    high = min(int(ordered[int(0.975 * ordered.size)]), 1 << 22)
    bucket = max(_bucket(1), _bucket(high))
    edges: list[int] = []
    while share(int(_start(bucket))) > 0.08 and len(edges) < _MOST_COUNTED:
        edges.append(int(_start(bucket)))
        bucket = _next(bucket)
    return Plan(tuple(edges), min(int(_start(bucket)), 1 << 22))


def _next(bucket: int) -> int:
    """The next bucket that holds a whole number."""
    return max(bucket + 1, _bucket(int(_start(bucket)) + 1))


class UlpHistogram:
    """Collects ULP distances block by block; knows the maximum and any quantile."""

    def __init__(self, known: Format) -> None:
        self._format = known
        self._max = 0
        self._total = 0
        self._lowest = 0
        self._counts: NDArray[np.int64] = np.zeros(_BUCKETS, dtype=np.int64)

    def add(self, reference: Array, candidate: Array) -> None:
        distance = ulp_distance(reference.ravel(), candidate.ravel(), self._format)
        if not distance.size:
            return
        self._max = max(self._max, int(distance.max()))
        self._total += distance.size
        self._counts += np.bincount(_buckets(distance), minlength=_BUCKETS)

    def add_counts(self, found: Sequence[Counts], plan: Plan) -> None:
        """Add what was counted by a plan; quantiles below its edge are then not known."""
        if not found:
            return
        self._max = max(self._max, *(block.max for block in found))
        rest = np.concatenate([block.rest for block in found])
        self._counts += np.bincount(_buckets(rest), minlength=_BUCKETS)
        for edge, numbers in zip(
            plan.counted, zip(*(b.between for b in found), strict=True), strict=False
        ):
            self._counts[_bucket(edge)] += sum(numbers)
            self._total += sum(numbers)
        below = sum(block.below for block in found)
        self._counts[0] += below
        self._total += below + rest.size
        if plan.edge > 1:
            self._lowest = max(self._lowest, _bucket(plan.edge))

    @property
    def max(self) -> float:
        return float(self._max)

    def knows(self, q: float) -> bool:
        """Whether enough was told apart for this quantile."""
        return not self._total or self._at(q) >= self._lowest

    def quantile(self, q: float) -> float:
        """The smallest bucket value that at least a share `q` of all distances do not exceed."""
        if not self._total:
            return 0.0
        # A count rounded up to float32 may top the maximum.
        return min(_start(self._at(q)), self.max)

    def _at(self, q: float) -> int:
        return int(np.searchsorted(np.cumsum(self._counts), q * self._total))
