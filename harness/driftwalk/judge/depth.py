"""Points that cannot be compared: one side has none, or one of another shape.

And a candidate with more or fewer layers than the reference: which layer that comes down to.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Literal

from ..layer_drift import Dtypes, LayerDrift
from ..names import in_stack, layer, place_of
from ..states import Point

Shape = tuple[int, ...]


def alone(
    point: Point,
    shape: Shape,
    dtype: str,
    verdict: Literal["missing", "extra"],
    allow: Iterable[str],
) -> LayerDrift:
    """A point that one side has alone; `allow` are the patterns of those that may be."""
    if verdict == "missing":
        dtypes, note = Dtypes(dtype, None), "the candidate gave no state here"
    else:
        dtypes, note = Dtypes(None, dtype), "the candidate has this point, the reference does not"
    allowed = any(fnmatchcase(point.name, glob) for glob in allow)
    return LayerDrift(point, 0, shape, dtypes, verdict, note=note, allowed=allowed)


def lacking_before(name: str, order: Sequence[str], seen: Container[str]) -> tuple[str, ...]:
    """The points right before one, in order, of which nothing was seen."""
    before = reversed(order[: order.index(name)])
    return tuple(takewhile(lambda other: other not in seen, before))[::-1]


def unlike(point: Point, reference: Shape, candidate: Shape, dtypes: Dtypes) -> LayerDrift:
    """A point at which the two sides have states of different shapes."""
    note = f"reference {list(reference)}, candidate {list(candidate)}"
    return LayerDrift(point, 0, reference, dtypes, "shape", note=note)


def unlike_by_chance(row: LayerDrift) -> LayerDrift:
    """The same where honest arithmetic has different shapes, too: nothing can be told of it."""
    note = (
        f"by chance: it follows from numbers that are rounded or compared in the model, and honest "
        f"arithmetic gives different ones ({row.note}). Try other inputs, or a finer dtype"
    )
    return replace(row, verdict="unknown", note=note)


def with_extra(rows: Iterable[LayerDrift], extra: Iterable[LayerDrift]) -> list[LayerDrift]:
    """All rows in order of execution: an extra layer after the one of the number before it."""
    found = list(rows)
    for row in extra:
        at = place_of(row.point.name)
        before = ""
        if at is not None and at.number is not None and at.is_state:
            before = in_stack(at.stack, layer(at.number - 1))
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
        at = place_of(row.point.name)
        if at is not None and at.number is not None and at.is_state:
            stacks.setdefault(at.stack, []).append(row)
    for stack in stacks.values():
        met = [row.verdict not in ("missing", "extra") for row in stack]
        tail = stack[len(met) - met[::-1].index(True) :] if any(met) else []
        if tail:
            return tail[0].point.name
    return None
