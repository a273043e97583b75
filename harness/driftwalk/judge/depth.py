"""A candidate with more or fewer layers than the reference: which layer that comes down to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..layer_drift import LayerDrift

_LAYER = re.compile(r"(?P<stack>.*?)layer\.(?P<number>\d+)\Z")


def with_extra(rows: Iterable[LayerDrift], extra: Iterable[LayerDrift]) -> list[LayerDrift]:
    """All rows in order of execution: an extra layer after the one of the number before it."""
    found = list(rows)
    for row in extra:
        match = _LAYER.match(row.point.name)
        before = f"{match['stack']}layer.{int(match['number']) - 1}" if match else ""
        names = [item.point.name for item in found]
        place = names.index(before) + 1 if before in names else len(found)
        found.insert(place, row)
    return found


def uneven_layer(layers: Iterable[LayerDrift]) -> str | None:
    """The first layer that one side has and the other has not, at the end of a stack.

    A gap in the middle is a state that was not found, not a layer that is not there.
    """
    rows = [row for row in layers if not row.allowed]
    stacks: dict[str, list[LayerDrift]] = {}
    for row in rows:
        if match := _LAYER.match(row.point.name):
            stacks.setdefault(match["stack"], []).append(row)
    for stack in stacks.values():
        met = [row.verdict not in ("missing", "extra") for row in stack]
        tail = stack[len(met) - met[::-1].index(True) :] if any(met) else []
        if tail:
            return tail[0].point.name
    return None
