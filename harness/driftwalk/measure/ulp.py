"""Distance in units in the last place: how many floats of a format lie between two values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array, Format

_SUB_BITS = 3
"""Mantissa bits kept per octave in the histogram: counts to 15 are exact, above to 1/8 octave."""
SHIFT = 23 - _SUB_BITS
BUCKETS = 256 << _SUB_BITS
"""The bits of a distance as a float32, shifted by `SHIFT`, are the number of its bucket."""


def ulp_distance(reference: Array, candidate: Array, kind: Format) -> NDArray[np.uint64]:
    """Representable steps of `kind` between both values, each first rounded to that format."""
    a, b = _ordered(reference, kind), _ordered(candidate, kind)
    return np.where(a > b, a - b, b - a).astype(np.uint64)


def _ordered(values: Array, kind: Format) -> NDArray[np.uint64]:
    """Map floats to integers that sort the same way and count every step; -0 and +0 are one."""
    rounded = np.ascontiguousarray(values.astype(kind.dtype, copy=False))
    width = rounded.dtype.itemsize * 8
    bits = rounded.view(f"u{rounded.dtype.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (width - 1))
    magnitude = bits & np.uint64((1 << (width - 1)) - 1)
    return np.where(bits & sign, sign - magnitude, sign + magnitude).astype(np.uint64)


def _buckets(distance: Array) -> NDArray[np.uint32]:
    """A float32's exponent and top mantissa bits are a logarithmic bucket number."""
    return distance.astype(np.float32).view(np.uint32) >> np.uint32(SHIFT)


def bucket_of(distance: float) -> int:
    return int(_buckets(np.array([distance]))[0])


def start_of(bucket: int) -> float:
    """The smallest distance in a bucket."""
    return float(np.uint32(bucket << SHIFT).view(np.float32))


class UlpHistogram:
    """Collects ULP distances block by block; knows the maximum and any quantile."""

    def __init__(self) -> None:
        self._max = 0
        self._counts: NDArray[np.int64] = np.zeros(BUCKETS, dtype=np.int64)

    def add(self, reference: Array, candidate: Array, kind: Format) -> None:
        distance = ulp_distance(reference.ravel(), candidate.ravel(), kind)
        if distance.size:
            counts = np.bincount(_buckets(distance), minlength=BUCKETS)
            self.add_counts(counts, int(distance.max()))

    def add_counts(self, counts: NDArray[np.int64], highest: int) -> None:
        """Add distances counted by bucket, and the largest of them."""
        self._counts += counts
        self._max = max(self._max, highest)

    @property
    def max(self) -> float:
        return float(self._max)

    def quantile(self, q: float) -> float:
        """The smallest bucket value that at least a share `q` of all distances do not exceed."""
        up_to = np.cumsum(self._counts)
        if not up_to[-1]:
            return 0.0
        # A count rounded up to float32 may top the maximum.
        return min(start_of(int(np.searchsorted(up_to, q * int(up_to[-1])))), self.max)
