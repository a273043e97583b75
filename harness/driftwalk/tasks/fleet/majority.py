"""Whose bits stand alone: places of one kind must compute the same bits, and most are right.

Only places whose basis agrees (device model, library versions, threads) are held against each
other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ...majority import ballots
from .result import Finding, Outlier, Split


@dataclass(frozen=True)
class Vote:
    """All that was learnt from comparing."""

    outliers: tuple[Outlier, ...] = ()
    splits: tuple[Split, ...] = ()
    alone: tuple[str, ...] = ()


def vote(found: Mapping[str, Finding]) -> Vote:
    """Findings by the name of their place, held against each other."""
    kinds: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for name in sorted(found):
        if found[name].patterns:
            kinds[tuple(sorted(found[name].basis.items()))].append(name)
    outliers: list[Outlier] = []
    splits: list[Split] = []
    alone: list[str] = []
    for names in kinds.values():
        if len(names) == 1:
            alone += names
            continue
        wrong, torn = _within({name: found[name] for name in names})
        outliers += wrong
        splits += torn
    return Vote(tuple(outliers), tuple(splits), tuple(sorted(alone)))


def _within(found: Mapping[str, Finding]) -> tuple[list[Outlier], list[Split]]:
    """Places of one kind, pattern by pattern, in the order in which they were computed."""
    against: dict[str, list[str]] = defaultdict(list)
    fewest: dict[str, int] = {}
    splits = []
    for ballot in ballots({name: found[name].patterns for name in sorted(found)}):
        if not ballot.decided:
            splits.append(Split(found[ballot.sides[0][0]].device, ballot.name, ballot.sides))
        for name in ballot.wrong:
            against[name].append(ballot.name)
            fewest[name] = min(fewest.get(name, ballot.votes), len(ballot.sides[0]))
    outliers = [
        Outlier(name, found[name].device, tuple(against[name]), fewest[name], len(found))
        for name in sorted(against)
    ]
    return outliers, splits
