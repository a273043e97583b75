"""Two arrays that should hold the same weight: equal, or what kind of difference, and where.

NaN equals NaN. Numbers in two dtypes are the same if one is the other rounded, or if both are
within a roundoff of the coarser dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...dtypes import Array, dtype_name, format_of
from ...layer_drift import Dtypes
from ...weight_change import WeightChange, WorstEntry
from ..constants import FACTOR_ENTRIES, FACTOR_ROUNDOFFS
from .blocks import blocks
from .order import in_words, permutation


def compare(a: Array, b: Array, name: str = "", other: str = "") -> WeightChange:
    """What became of the reference's `a` in the candidate's `b`."""
    made = WeightChange(
        name,
        other,
        "same",
        shapes=(a.shape, b.shape),
        dtypes=Dtypes(dtype_name(a), dtype_name(b)),
        total=a.size,
    )
    equal = "same" if a.dtype == b.dtype else "cast"
    if a.shape != b.shape:
        if _long(a.shape) == _long(b.shape):
            return _compared(made, a, b.reshape(a.shape), equal)
        if a.ndim == 2 and b.ndim == 2 and a.shape == b.T.shape:
            return _turned(_compared(replace(made, turned=True), a, b.T, equal))
        return replace(made, verdict="shape")
    return _compared(made, a, b, equal)


def _turned(change: WeightChange) -> WeightChange:
    return replace(change, verdict="transposed") if change.ok else change


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def _compared(made: WeightChange, a: Array, b: Array, equal: Any) -> WeightChange:
    """Arrays of one shape."""
    flat = (a.reshape(1), b.reshape(1)) if a.ndim == 0 else (a, b)
    if all_same(*flat):
        return replace(made, verdict=equal)
    seen = _measured(*flat)
    made = replace(
        made,
        verdict="differs",
        rel_l2=seen.rel_l2,
        max_abs=seen.max_abs,
        differing=seen.differing,
        worst=seen.worst if a.ndim else replace(seen.worst, index=()),
        place=seen.place if a.ndim else "",
    )
    if seen.differing > 1:
        made = _rearranged(made, a, b)
        if made.verdict == "differs" and math.isfinite(seen.max_abs):
            made = _related(made, a[seen.slice], b[seen.slice])
    return made


def all_same(a: Array, b: Array) -> bool:
    """Whether two arrays of one shape, which have an axis, hold the same numbers."""
    return all(same.all() for _, _, _, same in _pairs(a, b))


def _pairs(a: Array, b: Array) -> Iterator[tuple[int, Array, Array, Array]]:
    """Blocks of both, where they begin, and where they hold the same numbers."""
    for (start, x), (_, y) in zip(blocks(a), blocks(b), strict=True):
        yield start, x, y, same_numbers(x, y)


def same_numbers(x: Array, y: Array) -> Array:
    """Where two arrays hold the same numbers, each in its own dtype."""
    with np.errstate(all="ignore"):
        if x.dtype == y.dtype:
            if x.dtype.itemsize <= 8:  # equal bits are equal numbers, and found much faster
                bits = np.dtype(f"u{x.dtype.itemsize}")
                equal = np.asarray(x.view(bits) == y.view(bits))
                if equal.all():
                    return equal
            equal = np.asarray(x == y)
        else:
            equal = (x.astype(y.dtype) == y) | (y.astype(x.dtype) == x)
            coarse = _roundoff(x, y)
            if coarse:  # two roundings of a third number may lie on either side of it
                one, other = wide(x), wide(y)
                equal |= np.abs(one - other) <= coarse * np.maximum(np.abs(one), np.abs(other))
        if not equal.all() and x.dtype.kind not in "iub" and y.dtype.kind not in "iub":
            equal = equal | (np.isnan(x) & np.isnan(y))
    return equal


def wide(array: Array) -> Array:
    """In float64, or complex128."""
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _roundoff(*arrays: Array) -> float:
    """Of the coarsest of some dtypes; zero where none of them is a float."""
    return max((known.roundoff for one in arrays if (known := format_of(one))), default=0.0)


@dataclass(frozen=True)
class _Measured:
    rel_l2: float
    max_abs: float
    differing: int
    worst: WorstEntry
    slice: tuple[Any, ...]
    """What holds all differences."""
    place: str


def _measured(a: Array, b: Array) -> _Measured:
    """One pass over arrays that differ; both have an axis."""
    touched = [np.zeros(size, bool) for size in a.shape]
    apart, scale, differing, largest = 0.0, 0.0, 0, -1.0
    worst: tuple[int, ...] = ()
    for start, x, y, same in _pairs(a, b):
        with np.errstate(all="ignore"):
            own = np.abs(wide(x))
            distance = np.where(same, 0.0, np.abs(wide(x) - wide(y)))
        # A number against NaN or infinity: nothing is farther apart.
        distance[~same & ~np.isfinite(distance)] = np.inf
        scale += float(np.square(own[np.isfinite(own)]).sum())
        differing += int(distance.size - same.sum())
        most = int(distance.argmax())
        if (far := float(distance.flat[most])) > largest:
            inner = np.unravel_index(most, distance.shape)
            largest, worst = far, (start + int(inner[0]), *map(int, inner[1:]))
        apart += float(np.square(distance).sum())
        for axis in range(a.ndim):
            others = tuple(i for i in range(a.ndim) if i != axis)
            begin = start if axis == 0 else 0
            touched[axis][begin : begin + same.shape[axis]] |= (~same).any(axis=others)
    kept = [np.flatnonzero(seen) for seen in touched]
    fixed = [int(one[0]) if len(one) == 1 else None for one in kept]
    # An axis of one entry is no place.
    placed = any(at is not None and size > 1 for at, size in zip(fixed, a.shape, strict=True))
    words = ", ".join(":" if at is None else str(at) for at in fixed)
    return _Measured(
        math.sqrt(apart / scale) if scale > 0 else math.inf,
        largest,
        differing,
        WorstEntry(worst, _number(a[worst]), _number(b[worst])),
        tuple(slice(None) if at is None else slice(at, at + 1) for at in fixed),
        f"[{words}]" if placed else "",
    )


def _number(value: Any) -> float:
    return float(abs(value)) if np.iscomplexobj(value) else float(value)


def _rearranged(made: WeightChange, a: Array, b: Array) -> WeightChange:
    """Whether the same numbers stand in other places: turned, or in another order."""
    if a.dtype != b.dtype:
        coarser = max(a, b, key=_roundoff).dtype
        with np.errstate(all="ignore"):
            a, b = a.astype(coarser), b.astype(coarser)
    square = a.ndim == 2 and a.shape[0] == a.shape[1] and not made.turned
    if square and all_same(a, b.T):
        return replace(made, verdict="transposed", turned=True)
    if a.dtype.kind == "c":
        return made
    for axis, word in ((0, "rows"), (1, "columns")):
        if axis < min(a.ndim, 2 if a.ndim == 2 else 1):
            order = permutation(a, b, axis)
            if order is not None:
                said = in_words(order)
                return replace(made, verdict="permuted", axis=word, order=said)  # type: ignore[arg-type]
    return made


def _related(made: WeightChange, a: Array, b: Array) -> WeightChange:
    """Whether what differs is the reference's times one number, or plus one number."""
    if a.size < FACTOR_ENTRIES or a.dtype.kind == "c" or b.dtype.kind == "c" or not _roundoff(a, b):
        return made
    room = FACTOR_ROUNDOFFS * _roundoff(a, b)
    products = squares = 0.0
    offset, factor_fits, offset_fits = None, True, True
    for _, x, y in _finite(a, b):
        products += float((x * y).sum())
        squares += float(np.square(x).sum())
        offset = float(y.flat[0] - x.flat[0]) if offset is None and x.size else offset
    factor = products / squares if squares > 0 else math.nan
    for _, x, y in _finite(a, b):
        size = np.maximum(np.abs(x), np.abs(y))
        factor_fits &= bool((np.abs(y - factor * x) <= room * np.abs(factor * x)).all())
        shift = offset or 0.0
        offset_fits &= bool((np.abs(y - x - shift) <= room * np.maximum(size, abs(shift))).all())
    if factor_fits and math.isfinite(factor):
        return replace(made, factor=factor)
    return replace(made, offset=offset) if offset_fits else made


def _finite(a: Array, b: Array) -> Iterator[tuple[int, Array, Array]]:
    """Blocks in float64, without entries that are NaN or infinite on both sides."""
    for (start, x), (_, y) in zip(blocks(a), blocks(b), strict=True):
        one, other = wide(x), wide(y)
        good = np.isfinite(one) & np.isfinite(other)
        yield start, one[good], other[good]
