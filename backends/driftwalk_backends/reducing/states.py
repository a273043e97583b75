"""A cut that shows a drift, and what is right there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from driftwalk.dtypes import Array

from .cuts import Cut
from .showing import OVERALL, Shown, norm, same_kind, within

SAME_NUMBERS, MOST_CHOICES = 1e-4, 64
"""How far off, relatively, nodes may be with the model's own numbers, of which so many sets are
tried."""
ALIKE_NUMBERS = 2.0
"""The largest quotient of the largest errors of stored numbers that are one fault."""


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
        same = any(within(shown.relative, size, OVERALL) for size in sizes)
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
    """Whether the right numbers are all there, in another order or in their own."""
    if expected is None or found.shape != expected.shape or not expected.size:
        return False
    one, other = np.sort(found, axis=None), np.sort(expected, axis=None)
    near = SAME_NUMBERS * float(np.abs(other).max())
    return bool((np.abs(one - other) <= near).all())


def is_wrong_order(found: Array, expected: Array | None) -> bool:
    """Whether the right numbers are all there, and not where they belong."""
    if expected is None or not is_order_alone(found, expected):
        return False
    return bool((np.abs(found - expected) > SAME_NUMBERS * np.abs(expected).max()).any())


def differing(state: State) -> dict[str, Array]:
    """Stored tensors that differ from what the model has in their place, and by how much."""
    if state.right is None:
        return {}
    both = {name: (array, state.right.stored[name]) for name, array in state.cut.stored.items()}
    return {name: a - b for name, (a, b) in both.items() if not np.array_equal(a, b)}


def has_same_wrong(new: State, old: State) -> bool:
    """Whether the stored numbers that are most wrong are left: their place, sign and size.

    The drift is larger then, as less that is right is beside them; not smaller.
    """
    left, before = differing(new), differing(old)
    if not left or left.keys() != before.keys():
        return False
    at_most = [np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in before.values()]
    kept = [np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in left.values()]
    same = all(within(now, then, ALIKE_NUMBERS) for now, then in zip(kept, at_most, strict=True))
    return same and new.shown.relative >= old.shown.relative


def with_right_numbers(
    cut: Cut,
    parameters: Sequence[Array],
    expected: Array,
    near: float,
    wide: Callable[[Cut], Array | None],
) -> Cut | None:
    """The cut with parameters of the model in place of what is stored, if it is right with them.

    `near` is how far from what is expected it may be (L2); None where no choice of them is.
    """
    stored = {n: a for n, a in cut.stored.items() if a.dtype.kind == "f" and a.size > 1}
    choices = [[p for p in parameters if p.size == a.size] or [a] for a in stored.values()]
    near = min(near, SAME_NUMBERS * norm(expected))
    for chosen in islice(product(*choices), MOST_CHOICES):
        own = {
            name: array.reshape(stored[name].shape).astype(stored[name].dtype)
            for name, array in zip(stored, chosen, strict=True)
        }
        made = cut.with_values(own)
        found = wide(made)
        if found is not None and norm(found - expected) <= near:
            return made
    return None
