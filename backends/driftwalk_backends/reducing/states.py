"""A cut that shows a drift, and what is right there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

from .changes import Table
from .constants import (
    ALIKE_NUMBERS,
    LEAST_AWAY,
    MOST_CHOICES,
    SAME_CONSTANT,
    SAME_DRIFT_OVERALL,
    SAME_DRIFT_RELATIVE,
    SAME_NUMBERS,
)
from .cuts import Cut
from .showing import Shown, error_of, norm, same_kind, within


@dataclass(frozen=True, eq=False)
class State:
    """A cut that shows the drift."""

    cut: Cut
    shown: Shown
    nodes: tuple[int, ...]
    """Their numbers in the region."""
    expected: Array | None = None
    """What is right, where that is not what the cut gives in float64."""
    share: float = 1.0
    """Of the error at the guilty tensor, what this one's makes."""
    right: Cut | None = None
    """The same nodes with the numbers that the model has in place of the graph's: they make what
    is expected, of other inputs, too."""

    anchor: Shown | None = None
    """What it was compared with last, element by element: before values changed."""
    faded: float = 1.0
    """How much shorter axes are by now than they were there: errors of sums fade with them."""

    @property
    def compared(self) -> Shown:
        return self.shown if self.anchor is None else self.anchor

    def is_kind_of(self, shown: Shown, shorter: float = 1.0) -> bool:
        """Whether a drift on other values is the same one, by this state and by its anchor.

        `shorter` is what is left of an axis: since the anchor the drift may have faded as much.
        """
        before = self.compared.relative
        sizes = (before, before * self.faded * shorter)
        same = any(within(shown.relative, size, SAME_DRIFT_OVERALL) for size in sizes)
        return same and same_kind(shown, self.shown)

    @property
    def ratio(self) -> float:
        return self.shown.ratio

    @property
    def size(self) -> tuple[int, int, int]:
        """Nodes, the longest axis of what goes in or comes out, and all values."""
        longest = max((self.cut.longest, *self.shown.truth.shape))
        return len(self.cut.nodes), longest, self.cut.values


def is_order_alone(found: Array, expected: Array | None) -> bool:
    """Whether the right numbers are all there, in another order or in their own.

    Asked of those that are not in their place: all others would hide what these are. Many numbers
    have one that is near, whatever they are, so that they must be as far off as others' are.
    """
    if expected is None or found.shape != expected.shape or not expected.size:
        return False
    moved = _moved(found, expected)
    if not moved.any():
        return True
    one, other = np.sort(found[moved]), np.sort(expected[moved])
    away = norm(found[moved] - expected[moved]) >= LEAST_AWAY * norm(other - np.mean(other))
    return away and bool((np.abs(one - other) <= _near(expected)).all())


def is_wrong_order(found: Array, expected: Array | None) -> bool:
    """Whether the right numbers are all there, and not where they belong."""
    if expected is None or not is_order_alone(found, expected):
        return False
    return bool(_moved(found, expected).any())


def _near(expected: Array) -> float:
    return SAME_NUMBERS * float(np.abs(expected).max())


def _moved(found: Array, expected: Array) -> Array:
    with np.errstate(invalid="ignore"):  # what is not finite in both is where it belongs
        moved: Array = np.abs(found - expected) > _near(expected)
    return moved


def differing(state: State) -> dict[str, Array]:
    """Stored tensors that differ from what the model has in their place, and by how much."""
    if state.right is None:
        return {}
    both = {name: (array, state.right.stored[name]) for name, array in state.cut.stored.items()}
    return {name: error_of(a, b) for name, (a, b) in both.items() if not np.array_equal(a, b)}


def has_same_wrong(new: State, old: State) -> bool:
    """Whether the stored numbers that are most wrong are left: their place, sign and size.

    The drift may be larger then, as less that is right is beside them; not much smaller.
    """
    left, before = differing(new), differing(old)
    if not left or left.keys() != before.keys():
        return False
    at_most, kept = ([_most(array) for array in one.values()] for one in (before, left))
    same = all(within(now, then, ALIKE_NUMBERS) for now, then in zip(kept, at_most, strict=True))
    return same and new.shown.relative * SAME_DRIFT_RELATIVE >= old.shown.relative


def _most(array: Array) -> float:
    return float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


@dataclass(frozen=True)
class ModelNumbers:
    """What operations of the torch model were made with."""

    parameters: Sequence[Array]
    constants: Sequence[float] = ()
    """Those inside of them, an epsilon for example."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """What is left of some tables of the graph."""

    def instead(self, name: str, own: Array) -> list[Array]:
        """What may be right in the place of what a graph has stored."""
        if own.size == 1:
            return [own, *(np.full_like(own, one) for one in self.others(float(own.flat[0])))]
        fits = [array for array in self.parameters if array.size == own.size]
        if (table := self.tables.get(name)) is not None:
            whole = [array for array in self.parameters if array.size == math.prod(table.shape)]
            fits = [table.of(array) for array in whole]
        return [array.reshape(own.shape).astype(own.dtype) for array in fits] or [own]

    def others(self, own: float) -> list[float]:
        """Constants in the place of one that is none of them."""
        single = [float(array.flat[0]) for array in self.parameters if array.size == 1]
        known = list(dict.fromkeys([*self.constants, *single]))
        is_known = any(_is_constant(own, one) for one in known)
        return [] if is_known else known


def _is_constant(own: float, other: float) -> bool:
    return own == other or abs(own - other) <= SAME_CONSTANT * abs(other)


def with_right_numbers(
    cut: Cut,
    numbers: ModelNumbers,
    expected: Array,
    near: float,
    wide: Callable[[Cut], Array | None],
) -> Cut | None:
    """The cut with numbers of the model in place of its own, if it is right with them.

    `near` is how far from what is expected it may be (L2); None where no choice of them is.
    """
    stored = {n: a for n, a in cut.stored.items() if a.dtype.kind == "f"}
    names = sorted(stored, key=lambda name: stored[name].size > 1)  # constants stay, at first
    inside = cut.constants
    choices: list[list[Any]] = [[own, *numbers.others(own)] for own in inside.values()]
    choices += [numbers.instead(name, stored[name]) for name in names]
    near = min(near, SAME_NUMBERS * norm(expected[np.isfinite(expected)]))
    for chosen in islice(product(*choices), MOST_CHOICES):
        own = dict(zip(names, chosen[len(inside) :], strict=True))
        made = cut.with_constants(dict(zip(inside, chosen, strict=False))).with_values(own)
        found = wide(made)
        if found is not None and norm(error_of(found, expected)) <= near:
            return made
    return None
