"""Cuts that are smaller, or say less of the model: shorter axes, rounder values, other weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from driftwalk.dtypes import Array

from .axes import Axis
from .constants import LEAST_SIZE
from .cuts import Cut

_LOOKUPS = ("Gather", "GatherElements", "embedding")


@dataclass(frozen=True)
class Window:
    """The part of every axis of one length that is kept."""

    length: int
    begin: int
    size: int
    multiples: bool = False
    """Whether axes that are a multiple of it are shortened alike: heads times their channels."""
    halves: bool = False
    """Whether axes of half of it and one are: a Fourier transform of real numbers."""
    begins: Mapping[Axis, int] = field(default_factory=dict)
    """Of axes that begin elsewhere: rows and columns of a square matrix are two axes."""

    def slices(self, shape: tuple[int, ...], name: str) -> tuple[slice, ...]:
        """The part of a tensor that is kept."""
        return tuple(self._slice(n, (name, axis)) for axis, n in enumerate(shape))

    def _slice(self, n: int, axis: Axis) -> slice:
        begin = self.begins.get(axis, self.begin) if n == self.length else 0
        size = self.number(n)
        return slice(None) if size == n else slice(begin, begin + size)

    def number(self, n: int) -> int:
        """A size that the graph has stored."""
        if n == self.length:
            return self.size
        if self.halves and n == self.length // 2 + 1:
            return self.size // 2 + 1
        if self.multiples and n > self.length and n % self.length == 0:
            return n // self.length * self.size
        return n


def lengths(cut: Cut) -> list[int]:
    """Of all axes, and of those that stored sizes make, the longest first."""
    arrays = (*cut.stored.values(), *cut.given.values())
    axes = {n for array in arrays for n in array.shape if n > 1}
    sizes = [a for a in cut.stored.values() if a.dtype == np.int64 and a.ndim <= 1]
    made = {int(n) for array in sizes for n in array.reshape(-1) if n >= LEAST_SIZE}
    return sorted(axes | made, reverse=True)


def shorter(cut: Cut, window: Window) -> Cut:
    """The cut with all axes of one length shortened, and stored sizes with them."""

    def sized(name: str, array: Array) -> Array:
        if array.dtype == np.int64 and array.ndim <= 1:
            made = [window.number(int(n)) for n in array.reshape(-1)]
            return np.array(made, np.int64).reshape(array.shape)
        kept = window.slices(array.shape, name)
        return np.ascontiguousarray(array[kept]) if array.ndim else array

    arrays = {**cut.stored, **cut.given}
    made = {name: sized(name, array) for name, array in arrays.items()}
    for table, rows, axis in _lookups(cut):
        if arrays[table].shape[axis] == window.length in arrays[rows].shape:
            # Some of its rows are asked for by now: they may be anywhere in it.
            others = tuple(
                slice(None) if place == axis else part
                for place, part in enumerate(window.slices(arrays[table].shape, table))
            )
            some = arrays[rows][window.slices(arrays[rows].shape, rows)]
            made[table], made[rows] = _asked_for(arrays[table][others], some, axis)
    return replace(
        cut.resized(window.number),
        stored={name: made[name] for name in cut.stored},
        given={name: made[name] for name in cut.given},
    )


def windows(
    length: int,
    size: int,
    peaks: Sequence[int],
    others: Sequence[int] = (),
    apart: Sequence[Mapping[Axis, int]] = (),
) -> Iterator[Window]:
    """Where to begin: around places where something is largest, at the beginning, at the end.

    `apart` are beginnings axis by axis, which come first.
    `others` are the lengths of all axes where one that is half of another and one goes with it,
    and only so: a Fourier transform of real numbers means something else otherwise.
    """
    if length >= LEAST_SIZE and length // 2 + 1 in others:
        yield Window(length, 0, size, halves=True)
        return
    if any(other >= LEAST_SIZE and other // 2 + 1 == length for other in others):
        return
    for own in apart:
        yield Window(length, 0, size, begins=own)
    begins = [max(0, min(peak - size // 2, length - size)) for peak in peaks]
    for multiples in (False, True):
        for begin in dict.fromkeys([*begins, 0, length - size]):
            if not (multiples and begin):
                yield Window(length, begin, size, multiples)


def peak(array: Array, length: int) -> list[int]:
    """Where, along the axes of one length, an array is largest."""
    size = np.where(np.isfinite(array), np.abs(array), np.inf)
    places = []
    for axis in (axis for axis, n in enumerate(array.shape) if n == length):
        others = tuple(a for a in range(size.ndim) if a != axis)
        places.append(int(np.max(size, axis=others).argmax()))
    return places


def rounded(array: Array, digits: int) -> Array:
    """To so many significant digits."""
    wide = array.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.floor(np.log10(np.abs(wide)))
    power = np.where(np.isfinite(power), power, 0)
    scale = 10.0 ** (digits - 1 - power)
    made = np.where(np.isfinite(wide), np.round(wide * scale) / scale, wide)
    return made.astype(array.dtype)


def drawn(array: Array, seed: int) -> Array:
    """Random numbers of the same mean and spread, to two digits."""
    numbers = np.random.default_rng(seed)
    wide = array[np.isfinite(array)].astype(np.float64)
    if not wide.size:
        return array
    made = wide.mean() + wide.std() * numbers.standard_normal(array.shape)
    if wide.min() >= 0:
        made = np.abs(made)
    return rounded(made, 2).astype(array.dtype)


@dataclass(frozen=True, eq=False)
class Table:
    """What is left of a table."""

    shape: tuple[int, ...]
    """As it was."""
    rows: Array
    """Those that are left."""
    axis: int

    def of(self, whole: Array) -> Array:
        """The same rows of another table of that shape."""
        return np.take(whole.reshape(self.shape), self.rows, self.axis)


def trimmed(cut: Cut) -> tuple[Cut, dict[str, Table]]:
    """Tables that rows are looked up in, without those that nobody asks for."""
    made, tables = cut, {}
    for table, rows, axis in _lookups(cut):
        arrays = {**made.stored, **made.given}
        asked = _asked_for(arrays[table], arrays[rows], axis)
        if asked[0].shape[axis] < arrays[table].shape[axis]:
            tables[table] = Table(arrays[table].shape, np.unique(arrays[rows]), axis)
            made = made.with_values({table: asked[0], rows: asked[1]})
    return made, tables


def rows_used(cut: Cut) -> Cut | None:
    """The same cut with the rows alone that are looked up; None: nothing is left out."""
    made, tables = trimmed(cut)
    return made if tables else None


def _lookups(cut: Cut) -> Iterator[tuple[str, str, int]]:
    """A table, the numbers of its rows, and the axis that they count along; used for that alone."""
    arrays = {**cut.stored, **cut.given}
    uses = Counter(name for node in cut.nodes for name in node.input)
    for node in cut.nodes:
        if node.op_type not in _LOOKUPS:
            continue
        table, rows = node.input
        if table in arrays and rows in arrays and uses[table] == uses[rows] == 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            yield table, rows, axis % arrays[table].ndim


def _asked_for(table: Array, rows: Array, axis: int) -> tuple[Array, Array]:
    """The rows of a table that are looked up, and their numbers among these."""
    kept, numbers = np.unique(rows, return_inverse=True)
    return np.take(table, kept, axis), numbers.reshape(rows.shape).astype(rows.dtype)
