"""Norms of a difference by compiled code (../native); norms.py has the definition."""

from __future__ import annotations

from functools import reduce

import numpy as np

from ..dtypes import Array, Float64
from ..native import library
from ..workers import in_threads
from .halves import widened
from .spectral import RANGE, sketch_of

_TOGETHER, _PIECES = 1 << 18, 16
"""Elements that a thread looks at together, at least, and pieces that a state is cut into."""
_WIDE = {np.dtype(np.float32): 0, np.dtype(np.float64): 1}
"""How compiled code is told of a format."""
_NORMS = 10
"""Numbers of norms_t."""


def fast_norms(
    a: Array,
    b: Array | None,
    rows: Array | None,
    tokens: Float64,
    channels: Float64,
    alive: Array | None,
    upper: float,
    patterns: bool,
) -> list[float] | None:
    """All norms of a small difference in one call, in the order of `Norms`.

    None where there is no compiled code, or where it cannot tell.
    """
    native = library()
    chosen = _numbered(a, rows)
    if native is None or chosen.size * a.shape[1] > _TOGETHER:
        return None
    given = _for_compiled(a, b)
    if given is None:
        return None
    a, b, kinds = given
    tokens, channels = (np.ascontiguousarray(w, np.float64) for w in (tokens, channels))
    known = None if alive is None else np.ascontiguousarray(alive, np.bool_)
    sketch = sketch_of(a.shape[1]) if patterns else None
    found = np.empty(_NORMS)
    done = native.driftwalk_norms(
        *(array.ctypes.data for array in (a, b, chosen)),
        *(len(chosen), a.shape[1], kinds),
        *(tokens.ctypes.data, channels.ctypes.data, None if known is None else known.ctypes.data),
        *(upper, None if sketch is None else sketch.ctypes.data, *RANGE, found.ctypes.data),
    )
    return found.tolist() if done else None


def fast_difference(
    a: Array,
    b: Array | None,
    rows: Array | None,
    tokens: Float64,
    channels: Float64,
    whole: Array | None,
) -> tuple[Float64, Float64] | None:
    """What `_difference` of norms.py gives; None where numpy must do it."""
    native, given = library(), _for_compiled(a, b)
    if native is None or given is None or not a.size:
        return None
    a, b, kinds = given
    width, chosen = a.shape[1], _numbered(a, rows)
    tokens, channels = (np.ascontiguousarray(w, np.float64) for w in (tokens, channels))
    found = np.empty((len(chosen), 4))
    # As many rows at a time whatever the threads are: sums are then the same.
    step = max(1, -(-_TOGETHER // width), -(-len(chosen) // _PIECES))

    def look(first: int) -> Float64:
        some, squares = slice(first, first + step), np.zeros(width)
        out = np.empty(width, np.float32) if whole is None else whole[some]
        native.driftwalk_difference(
            *(array.ctypes.data for array in (a, b, chosen[some])),
            *(len(chosen[some]), width, kinds),
            *(array.ctypes.data for array in (tokens[some], channels, found[some], squares, out)),
            0 if whole is None else width,
        )
        return squares

    squares = in_threads(look, range(0, len(chosen), step))
    return found, reduce(np.add, squares, np.zeros(width))


def _numbered(a: Array, rows: Array | None) -> Array:
    """The numbers of the rows that count."""
    return np.ascontiguousarray(np.arange(len(a)) if rows is None else rows, np.int64)


def _for_compiled(a: Array, b: Array | None) -> tuple[Array, Array, int] | None:
    """Both sides, and how compiled code is told of their formats; None: it does not know them."""
    one = 4 if b is None else 0
    a, b = widened(a), np.zeros(a.shape[1], np.float32) if b is None else widened(b)
    if a.dtype not in _WIDE or b.dtype not in _WIDE:
        return None
    return a, b, _WIDE[a.dtype] + 2 * _WIDE[b.dtype] + one
