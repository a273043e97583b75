"""Formats of 16 bits, made wider and narrower: compiled code (native/halves.c) where there is some.

numpy's own way takes many times as long on machines for which it has no instructions.
"""

from __future__ import annotations

import numpy as np

from ..dtypes import Array, format_of
from ..native import library
from ..workers import in_threads

_BRAIN = {"fp16": False, "bf16": True}
_TOGETHER = 1 << 18
"""Elements that a thread converts at a time."""


def widened(array: Array) -> Array:
    """float16 and bfloat16 in float32, which holds all of their values; all in one piece."""
    own = format_of(array)
    if own is None or array.dtype.itemsize != 2:
        return np.ascontiguousarray(array)
    return _converted(array, np.dtype(np.float32), "driftwalk_widen", _BRAIN[own.name])


def narrowed(array: Array, kind: np.dtype[np.generic]) -> Array:
    """In a format of 16 bits: the nearest values, of two the even one; all in one piece."""
    if array.dtype != np.float32:
        return np.ascontiguousarray(array, kind)
    return _converted(array, kind, "driftwalk_narrow", kind != np.float16)


def _converted(array: Array, kind: np.dtype[np.generic], name: str, brain: bool) -> Array:
    native = library()
    if native is None or not array.dtype.isnative:
        return np.ascontiguousarray(array, kind)
    given, out = np.ascontiguousarray(array), np.empty(array.shape, kind)
    convert, size = getattr(native, name), array.size

    def look(first: int) -> None:
        read, write = first * given.itemsize, first * out.itemsize
        count = min(_TOGETHER, size - first)
        convert(given.ctypes.data + read, out.ctypes.data + write, count, brain)

    in_threads(look, range(0, size, _TOGETHER))
    return out
