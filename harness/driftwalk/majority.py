"""Votes over bit patterns: who gave the same bits, and whether more than half of them did.

No threshold and no distance: a pattern is the hash of the very bits, and is the same or is not.
Who computed nothing under a name does not vote there. Of two that disagree nobody knows who is
right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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
    def decided(self) -> bool:
        """Whether more than half agree, so that the others can be called wrong."""
        return 2 * len(self.sides[0]) > sum(map(len, self.sides))


@dataclass(frozen=True)
class Vote:
    """Voters that should all give the same bits."""

    voters: tuple[str, ...]
    ballots: tuple[Ballot, ...]
    """In order of execution."""

    @property
    def outliers(self) -> dict[str, list[Ballot]]:
        """Who differs from the majority, and where."""
        lost: dict[str, list[Ballot]] = defaultdict(list)
        for ballot in self.ballots:
            for name in (name for side in ballot.sides[1:] if ballot.decided for name in side):
                lost[name].append(ballot)
        return dict(lost)

    @property
    def undecided(self) -> tuple[Ballot, ...]:
        """Where voters disagree and no side has more than half of them."""
        return tuple(ballot for ballot in self.ballots if not ballot.decided)

    @property
    def unanimous(self) -> bool:
        """Whether anything was compared, and all agree in everything."""
        return bool(self.ballots) and all(len(ballot.sides) == 1 for ballot in self.ballots)


def vote(digests: Digests) -> Vote:
    """One ballot for everything that was computed more than once."""
    ballots = []
    for name in dict.fromkeys(name for own in digests.values() for name in own):
        sides: dict[str, list[str]] = defaultdict(list)
        for voter in sorted(digests):
            if name in digests[voter]:
                sides[digests[voter][name]].append(voter)
        ordered = sorted(map(tuple, sides.values()), key=lambda side: (-len(side), side))
        if sum(map(len, ordered)) > 1:
            ballots.append(Ballot(name, tuple(ordered)))
    return Vote(tuple(digests), tuple(ballots))


def votes_by_kind(digests: Digests, kinds: Mapping[str, Mapping[str, str]]) -> list[Vote]:
    """A vote among those of each kind: only equal devices and libraries must give equal bits."""
    groups: dict[frozenset[tuple[str, str]], dict[str, Mapping[str, str]]] = defaultdict(dict)
    for voter, own in digests.items():
        groups[frozenset(kinds[voter].items())][voter] = own
    return [vote(group) for group in groups.values()]
