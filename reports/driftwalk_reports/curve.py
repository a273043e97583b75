"""The drift curve as geometry: where each point, tick and line of the SVG goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .numbers import number
from .rows import Row

WIDTH, LEFT, RIGHT = 1000.0, 62.0, 16.0
MOST_LABELS = 26
MOST_MARKS = 200
"""Beyond this many points only those that say something get a mark of their own."""


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str
    strong: bool = False


@dataclass(frozen=True)
class Mark:
    """One point of the model, drawn."""

    x: float
    y: float
    row: Row
    on_scale: bool
    """Whether the height means a value; else the row's symbol stands at the top edge."""
    value: str


@dataclass(frozen=True)
class Panel:
    """One value per point, on a log scale."""

    title: str
    top: float
    bottom: float
    ticks: tuple[Tick, ...]
    lines: tuple[str, ...]
    marks: tuple[Mark, ...]
    limit: float | None
    """Where the allowance ends."""


@dataclass(frozen=True)
class Curve:
    width: float
    height: float
    left: float
    right: float
    panels: tuple[Panel, ...]
    labels: tuple[Tick, ...]
    baseline: float


def drift_curve(rows: Sequence[Row]) -> Curve | None:
    """Relative error, and share of the allowance used, along the model; None without numbers."""
    if not any(row.error is not None for row in rows):
        return None
    upper = _panel("error: relative L2", rows, lambda row: row.error, top=30.0, bottom=210.0)
    lower = _panel(
        "share of the allowance used",
        rows,
        lambda row: row.needed,
        top=256.0,
        bottom=386.0,
        limit=1.0,
    )
    labels = _labels(rows)
    deepest = max((len(label.label) for label in labels), default=0)
    return Curve(
        width=WIDTH,
        height=lower.bottom + 22 + min(deepest, 24) * 4.6,
        left=LEFT,
        right=WIDTH - RIGHT,
        panels=(upper, lower),
        labels=labels,
        baseline=lower.bottom,
    )


def _x(index: int, total: int) -> float:
    return round(LEFT + (index + 0.5) * (WIDTH - LEFT - RIGHT) / total, 1)


def _panel(
    title: str,
    rows: Sequence[Row],
    value_of: Callable[[Row], float | None],
    *,
    top: float,
    bottom: float,
    limit: float | None = None,
) -> Panel:
    values = [value_of(row) for row in rows]
    positive = [v for v in values if v and math.isfinite(v)]
    known = positive + ([limit] if limit else [])
    low = math.floor(math.log10(min(known))) if known else -8
    high = math.ceil(math.log10(max(known))) if known else 0
    high = max(high, low + 2)

    def y(value: float) -> float:
        exponent = math.log10(value) if value > 0 else low
        part = (min(exponent, high) - low) / (high - low)
        return round(bottom - part * (bottom - top), 1)

    marks: list[Mark] = []
    lines: list[list[str]] = [[]]
    for index, (row, value) in enumerate(zip(rows, values, strict=True)):
        x = _x(index, len(rows))
        on_scale = value is not None and not math.isnan(value)
        height = y(value) if value is not None and on_scale else top + 7
        if on_scale:
            lines[-1].append(f"{x},{height}")
        else:  # a hole in the line, not a bridge over what was not measured
            lines.append([])
        if len(rows) <= MOST_MARKS or not row.ok or row.marks:
            marks.append(Mark(x, height, row, on_scale, number(value)))
    return Panel(
        title,
        top,
        bottom,
        _ticks(low, high, y),
        tuple(" ".join(line) for line in lines if line),
        tuple(marks),
        y(limit) if limit else None,
    )


def _ticks(low: int, high: int, y: Callable[[float], float]) -> tuple[Tick, ...]:
    step = max(1, math.ceil((high - low) / 5))
    return tuple(
        Tick(y(10.0**exponent), f"{10.0**exponent:g}") for exponent in range(low, high + 1, step)
    )


def _labels(rows: Sequence[Row]) -> tuple[Tick, ...]:
    """Names along the axis, thinned evenly; a marked point keeps its name and silences others."""
    step = math.ceil(len(rows) / MOST_LABELS)
    marked = [index for index, row in enumerate(rows) if row.marks]
    shown = [
        index
        for index in range(len(rows))
        if index in marked
        or (index % step == 0 and all(abs(index - other) >= step for other in marked))
    ]
    return tuple(
        Tick(_x(index, len(rows)), _short(rows[index].name), bool(rows[index].marks))
        for index in shown
    )


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:11]}…{name[-12:]}"
