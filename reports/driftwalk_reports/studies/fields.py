"""Heatmaps of points by tokens for studies: any numbers, on a scale of decades."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..heatmap import MOST_COLUMNS, MOST_LINES, MOST_NAMES, Heatmap, Line, Profile, field_paths
from ..numbers import cut, number

DECADES = 2.0
"""The scale spans at least so many, lest noise of one size fill all colours."""


def heatmap(
    title: str,
    hint: str,
    points: Sequence[str],
    values: Sequence[Profile],
    columns: Sequence[str],
    names: Sequence[str] = (),
) -> Heatmap | None:
    """One line per point and one column per token, binned by maximum; None without numbers."""
    if not values or not columns:
        return None
    across = math.ceil(len(columns) / MOST_COLUMNS)
    down = math.ceil(len(points) / MOST_LINES)
    parts = [range(i, min(i + across, len(columns))) for i in range(0, len(columns), across)]
    groups = [range(i, min(i + down, len(points))) for i in range(0, len(points), down)]
    fields: list[Profile] = [
        [_most(values[line][i] for line in group for i in part) for part in parts]
        for group in groups
    ]
    low, high = _ends(fields)
    fits = across == 1 and len(columns) <= MOST_NAMES
    return Heatmap(
        title=title,
        hint=hint,
        lines=tuple(_line(points, group) for group in groups),
        columns=tuple(_span(columns, part) for part in parts),
        names=tuple(cut(name, 14) for name in names) if fits else (),
        binned=across > 1 or down > 1,
        paths=field_paths(fields, low, high),
        values=tuple(tuple(None if v is None else number(v) for v in line) for line in fields),
        low=number(10**low),
        high=number(10**high),
    )


def _ends(fields: Sequence[Profile]) -> tuple[float, float]:
    known = [v for line in fields for v in line if v is not None and 0 < v < math.inf]
    if not known:
        return -DECADES, 0.0
    high = math.log10(max(known))
    return min(math.log10(min(known)), high - DECADES), high


def _most(values: Iterable[float | None]) -> float | None:
    """The largest; NaN, which is larger than nothing, wins."""
    found = [value for value in values if value is not None]
    return next((v for v in found if math.isnan(v)), max(found)) if found else None


def _line(points: Sequence[str], group: range) -> Line:
    first, last = cut(points[group[0]], 40), cut(points[group[-1]], 40)
    return Line(first if len(group) == 1 else f"{first} to {last}", first, True)


def _span(columns: Sequence[str], part: range) -> str:
    first = cut(columns[part[0]], 60)
    return first if len(part) == 1 else f"{first} to {cut(columns[part[-1]], 60)}"
