"""What is usual for a side over many probes, and which probe is not.

    size(n, norm)   =   e_c(n) / ( e_y(n) + floor_n / YARDSTICKS )     about 1 for honest arithmetic

A large set is screened: each probe is compared with the truth, and only a part of the set is judged
by what each layer makes of its own input as well. That sharper judgement sees a fault in one layer
which the noise of all layers before it hides. But such a fault, where only some probes show it,
makes these probes unlike the others: at its layer the error is larger than it usually is, or at
least it is by more than usual another one than at the layer before.

    step(n)   =   ( c_n - x_n ) - ( c_n-1 - x_n-1 )        in units of what layer n introduces
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..dtypes import Array, Float64
from ..measure.halves import widened
from ..measure.norms import NORM_NAMES, Norms, distance, ratio
from .constants import FLOOR_ROUNDOFFS, REMEMBERED_PROBES, UNUSUAL_BEYOND, UNUSUAL_SIZES, YARDSTICKS
from .honest import Honest

Sizes = Mapping[str, tuple[float, ...]]
"""By point, or step: an error in units of honest noise, in each judged norm."""
Pair = tuple[Array, Array]


def sizes_of(error: Norms, known: Honest) -> tuple[float, ...]:
    """An error in units of honest noise."""
    part = FLOOR_ROUNDOFFS * known.roundoff / YARDSTICKS

    def in_units(error: float, noise: float, size: float) -> float:
        return ratio(error, noise + part * size)

    return error.each_judged(in_units, known.noise, known.size)


def step_of(now: Pair, before: Pair, keep: Array | None, known: Honest) -> Norms:
    """By how much the error of a layer is another one than that of the layer before.

    Where a layer adds to a stream, the error that it was handed goes through: what is left is what
    it made itself, and little more. Each pair is a state, and what it should be.
    """
    (state, true), (state_before, true_before) = now, before
    ours, theirs = (
        np.subtract(widened(one), widened(other), dtype=np.float64)
        for one, other in ((state, state_before), (true, true_before))
    )
    return distance(ours, theirs, keep, known.weights, patterns=False)


STEP = " by itself"
"""What follows the name of a point where a size is that of a step."""


class Habit:
    """The errors that one side usually has, point by point and norm by norm."""

    def __init__(self) -> None:
        self._seen: dict[str, Float64] = {}
        """By point the latest probes, a row each; those that are not yet there are NaN ..."""
        self._count: Counter[str] = Counter()
        """... and how many there were."""

    def learn(self, sizes: Sizes) -> None:
        """One more probe that is like the others."""
        for point, found in sizes.items():
            if point not in self._seen:
                self._seen[point] = np.full((REMEMBERED_PROBES, len(NORM_NAMES)), np.nan)
            self._seen[point][self._count[point] % REMEMBERED_PROBES] = found
            self._count[point] += 1

    def unusual(self, sizes: Sizes) -> str:
        """The first point at which an error is not like that of other probes; empty: all are."""
        if unknown := next((point for point in sizes if point not in self._seen), ""):
            return unknown
        counts = {min(self._count[point], REMEMBERED_PROBES) for point in sizes}
        if len(counts) > 1:
            return next(filter(None, (self.unusual({n: s}) for n, s in sizes.items())), "")
        for count in counts:
            seen = np.stack([self._seen[point][:count] for point in sizes])
            found, largest = np.array(list(sizes.values())), UNUSUAL_BEYOND * seen.max(axis=1)
            if (found <= largest).all():
                continue  # as most are: what is usual need not be asked
            usual = np.median(seen, axis=1)
            with np.errstate(invalid="ignore"):  # infinitely far, each time
                alike = found <= np.maximum(_UNUSUAL * usual, largest)
            steps = np.array([point.endswith(STEP) for point in sizes])
            # What the layer was handed is more than it may make: it hides that.
            alike |= steps[:, None] & (usual > YARDSTICKS)
            if not alike.all():
                return list(sizes)[int(np.argmin(alike.all(axis=1)))]
        return ""


_UNUSUAL = np.array([UNUSUAL_SIZES[name] for name in NORM_NAMES])
