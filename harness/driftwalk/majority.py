"""Votes over bit patterns: who gave the same bits, and whether more than half of them did.

No threshold and no distance: a pattern is the hash of the very bits, and is the same or is not.
Who computed nothing under a name does not vote there. Of two that disagree nobody knows who is
right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Digests = Mapping[str, Mapping[str, str]]
"""By voter: what it computed, by name, in order of execution."""


@dataclass(frozen=True)
class Ballot:
    """One thing that at least two have computed."""

    name: str
    sides: tuple[tuple[str, ...], ...]
    """Voters with the same bits; the largest side first."""

    @property
    def votes(self) -> int:
        return sum(map(len, self.sides))

    @property
    def unanimous(self) -> bool:
        return len(self.sides) == 1

    @property
    def decided(self) -> bool:
        """Whether more than half agree, so that the others can be called wrong."""
        return 2 * len(self.sides[0]) > self.votes

    @property
    def wrong(self) -> tuple[str, ...]:
        """Who differs from the majority; nobody where there is none."""
        return tuple(name for side in self.sides[1:] for name in side) if self.decided else ()


def ballots(digests: Digests) -> Iterator[Ballot]:
    """Everything that was computed more than once, in order of execution."""
    for name in dict.fromkeys(name for own in digests.values() for name in own):
        sides: dict[str, list[str]] = defaultdict(list)
        for voter in sorted(digests):
            if name in digests[voter]:
                sides[digests[voter][name]].append(voter)
        ordered = sorted(map(tuple, sides.values()), key=lambda side: (-len(side), side))
        if sum(map(len, ordered)) > 1:
            yield Ballot(name, tuple(ordered))
