"""Distance in units in the last place: how many floats of a format lie between two values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import Array, Format

_SUB_BITS = 3
"""Mantissa bits kept per octave in the histogram: counts to 15 are exact, above to 1/8 octave."""


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


class UlpHistogram:
    """Collects ULP distances block by block; knows the maximum and any quantile."""

    def __init__(self, known: Format) -> None:
        self._format = known
        self._max = 0
        self._total = 0
        self._counts: NDArray[np.int64] = np.zeros(256 << _SUB_BITS, dtype=np.int64)

    def add(self, reference: Array, candidate: Array) -> None:
        distance = ulp_distance(reference.ravel(), candidate.ravel(), self._format)
        if not distance.size:
            return
        self._max = max(self._max, int(distance.max()))
        self._total += distance.size
        # A float32's exponent and top mantissa bits are a logarithmic bucket number.
        bucket: NDArray[Any] = distance.astype(np.float32).view(np.uint32) >> (23 - _SUB_BITS)
        self._counts += np.bincount(bucket, minlength=len(self._counts))

    @property
    def max(self) -> float:
        return float(self._max)

    def quantile(self, q: float) -> float:
        """The smallest bucket value that at least a share `q` of all distances do not exceed."""
        if not self._total:
            return 0.0
        bucket = int(np.searchsorted(np.cumsum(self._counts), q * self._total))
        start = np.uint32(bucket << (23 - _SUB_BITS)).view(np.float32)
        return min(float(start), self.max)  # a count rounded up to float32 may top the maximum
