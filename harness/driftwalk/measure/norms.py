"""The size of a difference, four ways at once.

A fault in one weight hides from L2, and broad noise hides from max-abs. Rounding noise is spread
over all tokens and channels; a fault has a shape. One wrong output weight is one bad channel: the
RMS of the worst channel sees it. One wrong inner weight adds a pattern of rank one (some tokens
times some channels): the largest singular value sees it, far below the noise's own L2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from ..dtypes import Array
from .fused_norms import VECTORS, fast_difference, fast_products

BLOCK = 1 << 16
_WIDEST = 1 << 13
_PASSES = 3
_PIECE = 1 << 18
"""Products of two numbers up to which OpenBLAS stays in one thread."""
_LOW, _HIGH = 1e-12, 1e12
"""Where products of float32 stay in its range."""


@dataclass(frozen=True)
class Norms:
    """L2, largest magnitude, RMS of the worst channel (last axis), largest singular value."""

    l2: float
    max_abs: float
    channel: float
    spectral: float = 0.0

    def scaled(self, factor: float) -> Norms:
        return Norms(**{f.name: getattr(self, f.name) * factor for f in _FIELDS})

    def plus(self, other: Norms) -> Norms:
        return Norms(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})

    def times(self, factors: Norms) -> Norms:
        return Norms(**{f.name: getattr(self, f.name) * getattr(factors, f.name) for f in _FIELDS})

    def over(self, allowed: Norms) -> tuple[float, str]:
        """The largest ratio to `allowed` over all norms, and which one it is."""
        ratios = {f.name: ratio(getattr(self, f.name), getattr(allowed, f.name)) for f in _FIELDS}
        worst = max(ratios, key=lambda name: ratios[name])
        return ratios[worst], worst


_FIELDS = fields(Norms)
NORM_NAMES = tuple(f.name for f in _FIELDS)
ZERO = Norms(0.0, 0.0, 0.0)


def ratio(top: float, bottom: float) -> float:
    """top / bottom, with 0/0 = 0, x/0 = inf, and NaN never small."""
    if math.isnan(top) or math.isnan(bottom):
        return math.inf
    if bottom > 0:
        return top / bottom
    return math.inf if top > 0 else 0.0


def norms_of(array: Array, keep: Array | None = None) -> Norms:
    """The norms of a state itself: the scale of what rounding does to it.

    Roundoffs of single elements know nothing of one another. Noise of one size in r rows and w
    channels has, of its L2, the part 1/sqrt(r) + 1/sqrt(w) along its strongest pattern.
    """
    size = distance(array, None, keep)
    width = array.shape[-1] if array.ndim else 1
    chosen = _rows(array, keep, width)
    rows = array.size // max(1, width) if chosen is None else len(chosen)
    part = 1 / math.sqrt(rows) + 1 / math.sqrt(width) if rows and width else 0.0
    return replace(size, spectral=size.l2 * min(1.0, part))


def distance(a: Array, b: Array | None, keep: Array | None = None) -> Norms:
    """The norms of a - b in float64, over the positions that count; NaN anywhere gives inf."""
    width = a.shape[-1] if a.ndim else 1
    a_rows = a.reshape(-1, width)
    b_rows = None if b is None else b.reshape(-1, width)
    rows = _rows(a, keep, width)
    count = len(a_rows) if rows is None else len(rows)
    # The difference itself is kept, in float32, for its singular values; logits are too wide.
    kept = b is not None and width <= _WIDEST
    whole = np.empty((count, width), np.float32) if kept else None
    with np.errstate(all="ignore"):
        found = fast_difference(a_rows, b_rows, rows, whole)
        channels, largest = found or _difference(a_rows, b_rows, rows, whole)
        squares = float(channels.sum())
    if not math.isfinite(squares) or math.isnan(largest):
        return Norms(math.inf, math.inf, math.inf, math.inf)
    worst = float(channels.max()) if width else 0.0
    return Norms(
        math.sqrt(squares),
        largest,
        math.sqrt(worst / count) if count else 0.0,
        _spectral(whole, largest, math.sqrt(squares)),
    )


def _difference(
    a: Array, b: Array | None, rows: Array | None, whole: Array | None
) -> tuple[Array, float]:
    """Squares by channel, and the largest magnitude; fills `whole`. The definition, in numpy."""
    width = a.shape[1]
    channels, largest, step = np.zeros(width), 0.0, max(1, BLOCK // max(1, width))
    for start in range(0, len(a) if rows is None else len(rows), step):
        part = slice(start, start + step) if rows is None else rows[start : start + step]
        d = a[part].astype(np.float64)
        if b is not None:
            d -= b[part].astype(np.float64)
        if d.size:
            largest = max(largest, float(d.max()), -float(d.min()))
            channels += np.einsum("ij,ij->j", d, d)
            if whole is not None:
                whole[start : start + step] = d
    return channels, largest


def _spectral(whole: Array | None, largest: float, l2: float) -> float:
    if whole is None or not largest:
        return 0.0
    # Beyond float32 (a flipped exponent bit, replayed in float64) L2 bounds it well enough.
    if largest > float(np.finfo(np.float32).max):
        return l2
    if _LOW < largest < _HIGH:
        return _largest_singular_value(whole)
    return _largest_singular_value(whole / largest) * largest


def _largest_singular_value(matrix: Array) -> float:
    """By a randomised range finder with a fixed seed: within a few per cent, in a few passes."""
    times, times_back = fast_products(matrix) or (
        lambda vectors: _times(matrix, vectors),
        lambda vectors: _times(matrix.T, vectors),
    )
    sketch = _random_sketch(matrix.shape[1])
    for _ in range(_PASSES):
        basis, _ = np.linalg.qr(times(sketch))
        sketch = times_back(basis)
    return math.sqrt(float(np.linalg.eigvalsh(sketch.T @ sketch)[-1]))


def _times(matrix: Array, vectors: Array) -> Array:
    """A product with few vectors, in pieces for which BLAS wakes no threads: they cost more."""
    step = max(1, _PIECE // max(1, vectors.size))
    pieces = [matrix[at : at + step] @ vectors for at in range(0, len(matrix), step)]
    return np.concatenate(pieces)


@lru_cache(maxsize=16)
def _random_sketch(width: int) -> Array:
    return np.random.default_rng(0).standard_normal((width, VECTORS), np.float32)


def _rows(array: Array, keep: Array | None, width: int) -> Array | None:
    """Numbers of the rows that count, for a state whose leading two axes `keep` covers."""
    if keep is None:
        return None
    inner = math.prod(array.shape[2:-1])
    chosen = np.flatnonzero(keep)
    return (chosen[:, None] * inner + np.arange(inner)).ravel() if inner > 1 else chosen
