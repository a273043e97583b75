"""The norms' two inner loops in compiled code (native/norms.c); norms.py has them in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import Array
from ..native import library
from .halves import widened

VECTORS = 8
"""Columns of the sketch that finds the largest singular value."""

_WIDE = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}

Product = Callable[[Array], Array]


def fast_difference(
    a: Array,
    b: Array | None,
    rows: Array | None,
    tokens: Array,
    channels: Array,
    whole: Array | None,
) -> tuple[Array, Array] | None:
    """As norms.py's `_difference`; None where numpy must do it."""
    known = library()
    if known is None or b is None or not a.size:
        return None
    a, b = widened(a), widened(b)
    if a.dtype not in _WIDE or b.dtype not in _WIDE:
        return None
    width = a.shape[1]
    numbers = np.arange(len(a)) if rows is None else rows
    chosen = np.ascontiguousarray(numbers, np.int64)
    weights = [np.ascontiguousarray(given, np.float64) for given in (tokens, channels)]
    out = np.empty(width, np.float32) if whole is None else whole
    found, squares = np.empty((len(chosen), 4)), np.zeros(width)
    known.driftwalk_difference(
        a.ctypes.data,
        b.ctypes.data,
        chosen.ctypes.data,
        len(chosen),
        width,
        _WIDE[a.dtype] + 2 * _WIDE[b.dtype],
        weights[0].ctypes.data,
        weights[1].ctypes.data,
        found.ctypes.data,
        squares.ctypes.data,
        out.ctypes.data,
        0 if whole is None else width,
    )
    return found, squares


def fast_products(matrix: Array) -> tuple[Product, Product] | None:
    """Products of a float32 matrix, and of its transpose, with `VECTORS` vectors."""
    known = library()
    if known is None or min(matrix.shape) < VECTORS:
        return None
    held = np.ascontiguousarray(matrix)

    def product(compute: Any, length: int) -> Product:
        def times(vectors: Array) -> Array:
            given, out = np.ascontiguousarray(vectors), np.zeros((length, VECTORS), np.float32)
            compute(held.ctypes.data, *held.shape, given.ctypes.data, out.ctypes.data)
            return out

        return times

    rows, width = held.shape
    return product(known.driftwalk_times, rows), product(known.driftwalk_times_back, width)
