"""Where the machines of a fleet are not alike: each difference with the groups it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from .result import Difference, Record

ABSENT = "(none)"
NAMES_ONE = ("uuid", "serial", "bus", "host", "node", "pci")
"""Parts of keys that only say which device it is: they differ always, and explain nothing."""


def differences_of(records: Sequence[Record]) -> tuple[Difference, ...]:
    """CPUs among CPUs, GPUs among GPUs: a node differs from itself in nothing."""
    found: list[Difference] = []
    for kind in ("cpu", "cuda"):
        known: dict[str, Mapping[str, str]] = {}
        nodes: dict[str, list[str]] = defaultdict(list)
        for record in records:
            if record.place is None or record.finding is None or record.place.kind != kind:
                continue
            if record.place.name not in known:
                nodes[record.place.node].append(record.place.name)
            known[record.place.name] = record.finding.environment
        for item in differences(known):
            groups = tuple((value, _by_node(names, nodes)) for value, names in item.groups)
            if not any((old.key, old.groups) == (item.key, groups) for old in found):
                found.append(Difference(item.key, groups))
    return tuple(found)


def differences(known: Mapping[str, Mapping[str, str]]) -> tuple[Difference, ...]:
    """What is known of each by key, as groups; what is the same everywhere is left out.

    Keys that part them in the same way stand together: another driver and another library on the
    same three nodes are one cause, seen twice.
    """
    keys = list(dict.fromkeys(key for told in known.values() for key in told))
    found = []
    for key in keys:
        if any(word in key.lower() for word in NAMES_ONE):
            continue
        groups: dict[str, list[str]] = defaultdict(list)
        for name in sorted(known):
            groups[known[name].get(key, ABSENT)].append(name)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
            found.append(Difference(key, tuple((value, tuple(who)) for value, who in ordered)))
    first = {_parting(item): number for number, item in reversed(list(enumerate(found)))}
    return tuple(sorted(found, key=lambda item: first[_parting(item)]))


def _parting(difference: Difference) -> frozenset[tuple[str, ...]]:
    return frozenset(names for _, names in difference.groups)


def _by_node(names: Iterable[str], nodes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The node's name instead of all its places."""
    left = list(names)
    found = []
    for node, places in nodes.items():
        if all(place in left for place in places):
            found.append(node)
            left = [name for name in left if name not in places]
    return tuple(sorted([*found, *left]))
