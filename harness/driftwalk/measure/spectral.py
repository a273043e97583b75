"""The largest singular value of a difference: a pattern of rank one hides from every other norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import Array
from ..native import library
from .constants import SKETCH_PASSES, SKETCH_VECTORS

Product = Callable[[Array], Array]

_PIECE = 1 << 18
"""Products of two numbers up to which OpenBLAS stays in one thread."""
RANGE = 1e-12, 1e12
"""Where products of float32 stay in its range."""
_TINIEST, _LARGEST = (float(getattr(np.finfo(np.float32), name)) for name in ("tiny", "max"))


def spectral(whole: Array | None, largest: float, l2: float) -> float:
    if whole is None or not largest:
        return 0.0
    # Beyond float32 (a flipped exponent bit, replayed in float64) or below it (what is left of a
    # product of tiny numbers in float64), where `whole` is 0, L2 bounds it well enough.
    if not _TINIEST <= largest <= _LARGEST:
        return l2
    if RANGE[0] < largest < RANGE[1]:
        found = _largest_singular_value(whole)
    else:
        found = _largest_singular_value(whole / np.float32(largest)) * largest
    return found if math.isfinite(found) else l2


def _largest_singular_value(matrix: Array) -> float:
    """By a randomised range finder with a fixed seed: within a few per cent, in a few passes."""
    times, times_back = fast_products(matrix) or (
        lambda vectors: _times(matrix, vectors),
        lambda vectors: _times(matrix.T, vectors),
    )
    sketch = sketch_of(matrix.shape[1])
    for _ in range(SKETCH_PASSES):
        basis, _ = np.linalg.qr(times(sketch))
        sketch = times_back(basis)
    try:
        return math.sqrt(max(0.0, float(np.linalg.eigvalsh(sketch.T @ sketch)[-1])))
    except np.linalg.LinAlgError:  # an iteration of LAPACK that did not end
        # The L2 of the few strongest patterns: never less than the strongest alone.
        return math.sqrt(float(np.square(sketch, dtype=np.float64).sum()))


def fast_products(matrix: Array) -> tuple[Product, Product] | None:
    """Products of a float32 matrix, and of its transpose, with `SKETCH_VECTORS` vectors."""
    native = library()
    if native is None or min(matrix.shape) < SKETCH_VECTORS:
        return None
    held = np.ascontiguousarray(matrix)

    def product(compute: Any, length: int) -> Product:
        def times(vectors: Array) -> Array:
            given, out = (
                np.ascontiguousarray(vectors),
                np.zeros((length, SKETCH_VECTORS), np.float32),
            )
            compute(held.ctypes.data, *held.shape, given.ctypes.data, out.ctypes.data)
            return out

        return times

    rows, width = held.shape
    return product(native.driftwalk_times, rows), product(native.driftwalk_times_back, width)


def _times(matrix: Array, vectors: Array) -> Array:
    """A product with few vectors, in pieces for which BLAS wakes no threads: they cost more."""
    step = max(1, _PIECE // max(1, vectors.size))
    pieces = [matrix[at : at + step] @ vectors for at in range(0, len(matrix), step)]
    return np.concatenate(pieces)


@lru_cache(maxsize=16)
def sketch_of(width: int) -> Array:
    """Random numbers, the same ones each time."""
    return np.random.default_rng(0).standard_normal((width, SKETCH_VECTORS), np.float32)
