"""Who is the odd one out among devices, cores or nodes that should all give the same bits.

More than half of all must agree for the others to be called wrong. Of two that disagree nobody
knows which one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Vote:
    """What a vote over bit patterns came to."""

    voters: tuple[str, ...]
    compared: tuple[str, ...]
    """The cases and states that all of them have."""
    outliers: Mapping[str, str]
    """Who differs from the majority, and the first state in which it does."""
    undecided: tuple[str, ...] = ()
    """States in which voters disagree and no side has more than half of them."""

    @property
    def unanimous(self) -> bool:
        return bool(self.compared) and not self.outliers and not self.undecided


def vote(digests: Mapping[str, Mapping[str, str]]) -> Vote:
    """Digests of each voter, by case and state in order of execution."""
    voters = tuple(digests)
    if len(voters) < 2:
        return Vote(voters, (), {})
    first = digests[voters[0]]
    compared = tuple(key for key in first if all(key in digests[name] for name in voters))
    outliers: dict[str, str] = {}
    undecided = []
    for key in compared:
        ((most, count),) = Counter(digests[name][key] for name in voters).most_common(1)
        if count == len(voters):
            continue
        if 2 * count <= len(voters):
            undecided.append(key)
            continue
        for name in voters:
            if digests[name][key] != most:
                outliers.setdefault(name, key)
    return Vote(voters, compared, outliers, tuple(undecided))
