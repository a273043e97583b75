"""What a model chose in one run: which experts, which queries, which bucket. Arrays, by place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .dtypes import Array, Float64


@dataclass(frozen=True, eq=False)
class Choice:
    """One place at which a model chooses by its own numbers, and what it chose in every row.

    A row is what is decided at once: for a router, a token.
    """

    name: str
    """The module, the operation, and which call of it: the same in every run of the model."""
    module: str
    """The innermost module that was running."""
    point: str
    """The point that follows: the layer that the choice belongs to."""
    op: str
    taken: Array
    """(rows, places): the indices that were taken."""
    own: Array
    """The same by this run's own numbers; another where the run was made to take others."""
    scores: Float64
    """(rows, all): the numbers that decided."""
    descending: bool = True
    ordered: bool = False
    """Whether the order of the places counts: a sort."""
    weights: Float64 | None = None
    """(rows, places): what each one taken counts, where that could be seen."""

    @property
    def rows(self) -> int:
        return len(self.scores)

    @property
    def of(self) -> int:
        return int(self.scores.shape[-1])

    @property
    def best(self) -> int:
        return int(self.taken.shape[-1])


def other_rows(taken: Array, than: Array, ordered: bool = False) -> Array:
    """Which rows hold other indices, whatever their order unless that counts."""
    if taken.shape != than.shape:
        return np.ones(len(than), dtype=bool)
    if not ordered:
        taken, than = np.sort(taken, axis=-1), np.sort(than, axis=-1)
    found: Array = (taken != than).any(axis=-1)
    return found
