"""The fewest parts to restore so that a loss is at most a goal; every loss is measured.

Greedy: of all parts that are left, the one that leaves the least loss is restored, until the goal
is reached; then each is taken back, the most expensive first, without which the goal still holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Loss = Callable[[frozenset[str]], float]
"""What is lost with these parts restored; NaN is more than anything."""


@dataclass(frozen=True)
class Step:
    """One more part restored."""

    part: str
    loss: float
    """With all parts restored so far."""
    bytes: int
    """What all of them take more than before."""


@dataclass(frozen=True)
class Found:
    """What a search found out."""

    before: float
    alone: Mapping[str, float]
    """The loss with one part restored, for each."""
    steps: tuple[Step, ...]
    chosen: tuple[str, ...]
    """Of the steps, those that the goal needs."""
    loss: float
    """With the chosen ones restored."""
    runs: int

    @property
    def ranking(self) -> tuple[str, ...]:
        """All parts, the one whose restoring leaves least first."""
        return tuple(sorted(self.alone, key=lambda part: self.alone[part]))


def search(bytes_of: Mapping[str, int], loss: Loss, goal: float) -> Found:
    """Restore parts until the loss is at most the goal, or none of them helps any more."""
    known: dict[frozenset[str], float] = {}

    def measured(parts: frozenset[str]) -> float:
        if parts not in known:
            found = loss(parts)
            known[parts] = math.inf if math.isnan(found) else found
        return known[parts]

    restored: frozenset[str] = frozenset()
    before = now = measured(restored)
    alone = {part: measured(frozenset([part])) for part in bytes_of}
    steps: list[Step] = []
    while now > goal and len(restored) < len(bytes_of):
        left = [part for part in bytes_of if part not in restored]
        best = min(left, key=lambda part: (measured(restored | {part}), bytes_of[part]))
        if measured(restored | {best}) >= now and len(left) > 1:
            # No part alone helps: two may undo what each does to the other.
            best = min(left, key=lambda part: (alone[part], bytes_of[part]))
        restored |= {best}
        now = measured(restored)
        steps.append(Step(best, now, sum(bytes_of[part] for part in restored)))
    if now <= goal:
        for part in sorted(restored, key=lambda part: -bytes_of[part]):
            if measured(restored - {part}) <= goal:
                restored -= {part}
    chosen = tuple(step.part for step in steps if step.part in restored)
    return Found(before, alone, tuple(steps), chosen, measured(restored), len(known))
