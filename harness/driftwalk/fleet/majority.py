"""Whose bits stand alone: places of one kind must compute the same bits, and most are right.

No threshold and no distance: a pattern is the hash of the very bits, and is the same or is not.
Only places whose basis agrees (device model, library versions, threads) are held against each
other; more than half of those that computed a thing must agree on it before anyone is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    for pattern in _in_order(found):
        sides = _sides(found, pattern)
        votes = sum(map(len, sides))
        if len(sides) == 1:
            continue
        if 2 * len(sides[0]) <= votes:
            device = found[sides[0][0]].device
            splits.append(Split(device, pattern, tuple(map(tuple, sides))))
            continue
        for name in (name for side in sides[1:] for name in side):
            against[name].append(pattern)
            fewest[name] = min(fewest.get(name, votes), len(sides[0]))
    outliers = [
        Outlier(name, found[name].device, tuple(against[name]), fewest[name], len(found))
        for name in sorted(against)
    ]
    return outliers, splits


def _in_order(found: Mapping[str, Finding]) -> Sequence[str]:
    return list(dict.fromkeys(key for name in sorted(found) for key in found[name].patterns))


def _sides(found: Mapping[str, Finding], pattern: str) -> list[list[str]]:
    """Who gave which bits; the largest side first. Who has none does not vote."""
    sides: dict[str, list[str]] = defaultdict(list)
    for name in sorted(found):
        if pattern in found[name].patterns:
            sides[found[name].patterns[pattern]].append(name)
    return sorted(sides.values(), key=lambda names: (-len(names), names))
