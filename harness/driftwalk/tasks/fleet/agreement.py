"""What only all places together say: whose bits stand alone, and where machines are not alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...majority import votes_by_kind
from .result import Difference, Finding, Outlier, Record, Split

ABSENT = "(none)"
NAMES_ONE = ("uuid", "serial", "bus", "host", "node", "pci")
"""Parts of keys that only say which device it is: they differ always, and explain nothing."""


class Agreement(NamedTuple):
    outliers: tuple[Outlier, ...] = ()
    splits: tuple[Split, ...] = ()
    alone: tuple[str, ...] = ()


def agreement(findings: Mapping[str, Finding]) -> Agreement:
    """Findings by the name of their place, compared where the basis agrees.

    Places of one kind (device model, library versions, threads) must compute the same bits, and
    most are right.
    """
    found = {name: findings[name] for name in sorted(findings) if findings[name].patterns}
    outliers: list[Outlier] = []
    splits: list[Split] = []
    alone: list[str] = []
    patterns = {name: finding.patterns for name, finding in found.items()}
    for vote in votes_by_kind(patterns, {name: item.basis for name, item in found.items()}):
        if len(vote.voters) == 1:
            alone += vote.voters
        splits += [Split(found[b.sides[0][0]].device, b.name, b.sides) for b in vote.undecided]
        for name, lost in sorted(vote.outliers.items()):
            otherwise = tuple(ballot.name for ballot in lost)
            fewest = min(len(ballot.sides[0]) for ballot in lost)
            device = found[name].device
            outliers.append(Outlier(name, device, otherwise, fewest, len(vote.voters)))
    return Agreement(tuple(outliers), tuple(splits), tuple(sorted(alone)))


def differences_of(records: Sequence[Record]) -> tuple[Difference, ...]:
    """CPUs among CPUs, GPUs among GPUs: a node differs from itself in nothing."""
    unique: dict[Difference, None] = {}
    for kind in ("cpu", "cuda"):
        environments: dict[str, Mapping[str, str]] = {}
        nodes: dict[str, list[str]] = defaultdict(list)
        for record in records:
            if record.place is None or record.finding is None or record.place.kind != kind:
                continue
            if record.place.name not in environments:
                nodes[record.place.node].append(record.place.name)
            environments[record.place.name] = record.finding.environment
        for item in differences(environments):
            groups = tuple((value, _by_node(names, nodes)) for value, names in item.groups)
            unique[Difference(item.key, groups)] = None
    return tuple(unique)


def differences(environments: Mapping[str, Mapping[str, str]]) -> tuple[Difference, ...]:
    """Values by key, as groups of who has them; what is the same everywhere is left out.

    Keys that part them in the same way stand together: another driver and another library on the
    same three nodes are one cause, seen twice.
    """
    by_parting: dict[frozenset[tuple[str, ...]], list[Difference]] = defaultdict(list)
    for key in dict.fromkeys(key for environment in environments.values() for key in environment):
        if any(word in key.lower() for word in NAMES_ONE):
            continue
        groups: dict[str, list[str]] = defaultdict(list)
        for name in sorted(environments):
            groups[environments[name].get(key, ABSENT)].append(name)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
            who = tuple((value, tuple(names)) for value, names in ordered)
            by_parting[frozenset(names for _, names in who)].append(Difference(key, who))
    return tuple(item for alike in by_parting.values() for item in alike)


def _by_node(names: Iterable[str], nodes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The node's name instead of all its places."""
    left = set(names)
    whole = [node for node, places in nodes.items() if left.issuperset(places)]
    left.difference_update(place for node in whole for place in nodes[node])
    return tuple(sorted([*whole, *left]))
