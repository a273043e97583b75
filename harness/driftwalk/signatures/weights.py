"""Seeded random numbers that are the same on every machine and in every version of numpy.

splitmix64 of a counter gives 64 bits; eight bits make one weight: how many of them are set, less
four. Such a weight is the sum of eight fair signs, halved: a whole number from -4 to 4, of mean 0
and variance 2, near enough to a Gaussian for the bounds of bounds.py, and exact in any arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT = 64
"""Projections of a state."""

VARIANCE = 2.0
"""Of a weight."""

LARGEST = 4
"""A weight's magnitude at most."""

SAMPLES = 32
"""Elements of a state that are kept as they are."""

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_TABLE = np.array([byte.bit_count() - 4 for byte in range(256)], np.float64)
_SAMPLING = 0x5EED


def _mixed(counters: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """splitmix64: what stands at these places of the stream of a seed."""
    with np.errstate(over="ignore"):
        z = (counters + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(seed & _MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def weights(start: int, stop: int, seed: int) -> NDArray[np.float64]:
    """The weights of elements `start` to `stop`: one row each, one column per projection."""
    words = COUNT // 8
    counters = np.arange(start * words, stop * words, dtype=np.uint64)
    raw: NDArray[Any] = _mixed(counters, seed).astype("<u8").view(np.uint8)
    drawn: NDArray[np.float64] = _TABLE[raw].reshape(stop - start, COUNT)
    return drawn


def places(counted: int, seed: int) -> NDArray[np.int64]:
    """Where the samples of a state stand among the elements that count; some may be one."""
    if not counted:
        return np.zeros(0, np.int64)
    drawn = _mixed(np.arange(SAMPLES, dtype=np.uint64), seed ^ _SAMPLING)
    return (drawn % np.uint64(counted)).astype(np.int64)
