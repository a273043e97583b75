"""Who is the odd one out among devices or cores that should all give the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...majority import Digests, ballots


@dataclass(frozen=True)
class Vote:
    """What a vote over bit patterns came to."""

    voters: tuple[str, ...]
    compared: tuple[str, ...]
    """The cases and states that at least two of them have."""
    outliers: Mapping[str, str]
    """Who differs from the majority, and the first state in which it does."""
    undecided: tuple[str, ...] = ()
    """States in which voters disagree and no side has more than half of them."""

    @property
    def unanimous(self) -> bool:
        return bool(self.compared) and not self.outliers and not self.undecided


def vote(digests: Digests) -> Vote:
    """Digests of each voter, by case and state in order of execution."""
    held = list(ballots(digests))
    outliers: dict[str, str] = {}
    for ballot in held:
        for name in ballot.wrong:
            outliers.setdefault(name, ballot.name)
    compared = tuple(ballot.name for ballot in held)
    undecided = tuple(ballot.name for ballot in held if not ballot.decided)
    return Vote(tuple(digests), compared, outliers, undecided)
