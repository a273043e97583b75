"""The error of each token: what heatmaps are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np

from ..dtypes import Float64
from ..jsonable import Size
from ..native import library
from .metric_list import Numbers

TokenErrors = Sequence[Sequence[Size | None]]
"""L2 of a difference per (row, position); None where padded."""

_Row = tuple[float | None, ...]


class Profile(Sequence[_Row]):
    """The errors of the rows that count, to four digits, by row and position.

    They become Python's floats when somebody looks: thousands of those take longer to make than
    all other numbers of a pair.
    """

    def __init__(self, errors: Float64, rows: Numbers, shape: tuple[int, int]) -> None:
        self._errors, self._rows, self._shape = errors, rows, shape

    @cached_property
    def _told(self) -> tuple[_Row, ...]:
        errors = four_digits(self._errors)
        if errors.size == math.prod(self._shape):
            return tuple(map(tuple, errors.reshape(self._shape).tolist()))
        found: list[float | None] = [None] * math.prod(self._shape)
        for row, error in zip(self._rows.tolist(), errors.tolist(), strict=True):
            found[row] = error
        width = self._shape[1]
        return tuple(tuple(found[i * width : (i + 1) * width]) for i in range(self._shape[0]))

    @overload
    def __getitem__(self, at: int) -> _Row: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[_Row, ...]: ...
    def __getitem__(self, at: int | slice) -> _Row | tuple[_Row, ...]:
        return self._told[at]

    def __len__(self) -> int:
        return self._shape[0]

    def __eq__(self, other: object) -> bool:
        """As the same floats in tuples, which is what a stored result has."""
        return self._told == (other._told if isinstance(other, Profile) else other)

    def __hash__(self) -> int:
        return hash(self._told)

    def __repr__(self) -> str:
        return repr(self._told)


def profile(row_l2: list[Float64], rows: Numbers, shape: tuple[int, ...]) -> Profile | None:
    """The errors of rows by token; None for a state that has no token axis."""
    if len(shape) < 3 or not row_l2:
        return None
    errors = row_l2[0] if len(row_l2) == 1 else np.concatenate(row_l2)
    return Profile(errors, rows, (shape[0], shape[1]))


def four_digits(values: Float64) -> Float64:
    """Each as float(f"{value:.4g}") has it."""
    native = library()
    if native is None:
        return np.array([float(f"{value:.4g}") for value in values.tolist()])
    rounded = values.copy()
    native.driftwalk_four_digits(rounded.ctypes.data, rounded.size)
    return rounded
