"""Charts along the model as geometry: where each line, tick and label of the SVG goes.

A chart is a stack of panels that share one axis, the points in order of execution. It knows
nothing of reports: it is given columns and series of numbers. It is drawn twice, for wide screens
and for a phone's, and the page shows the one that fits: letters stay readable, and no layer is
scrolled out of sight.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from .numbers import cut, number

LINE = 14.0
"""Height of a line of text."""


@dataclass(frozen=True)
class Axis:
    """A span from left to right."""

    left: float
    right: float

    def at(self, part: float) -> float:
        """The place of a part of one."""
        return round(self.left + (self.right - self.left) * min(1.0, max(0.0, part)), 1)


@dataclass(frozen=True)
class Sheet:
    """What a chart is drawn on."""

    name: str
    width: float
    axis: Axis
    most_labels: int
    """Names along the axis."""
    letters: int
    """Of the longest name; the middle of a longer one is left out."""
    title: int
    """Letters in a line of a title."""
    most_dots: int
    """Beyond this many points only those that say something get a dot of their own."""
    most_hits: int | None
    """Beyond this many points their strips are too narrow to be touched."""
    one_line: bool
    """Whether all marks of a point fit into one line."""
    turn: float
    """The part of the width from which on marks stand to the left of their point."""


WIDE = Sheet("wide", 1000.0, Axis(68.0, 984.0), 26, 14, 140, 200, None, True, 0.75)
NARROW = Sheet("narrow", 360.0, Axis(50.0, 354.0), 9, 9, 48, 40, 40, False, 0.5)


@dataclass(frozen=True)
class Column:
    """One point of the model, as a chart needs to know it."""

    name: str
    symbol: str = ""
    ok: bool = True
    marks: tuple[str, ...] = ()
    said: str = ""
    """What is said, below all numbers, when it is pointed at."""


@dataclass(frozen=True)
class Series:
    """One value per column; None where there is none, infinity where it leaves the scale."""

    label: str
    """Up to `: ` it is the name that stands before single values."""
    look: str
    """The name of a style: colour, dashes and shape of the dots."""
    values: Sequence[float | None]
    dots: bool = True
    ok: Sequence[bool] | None = None
    """Whether each value is one to accept; None: as the columns are."""


@dataclass(frozen=True)
class Plot:
    """What one panel shows; `limit` is the value beyond which it is bad."""

    title: str
    series: Sequence[Series]
    height: float
    limit: float | None = None
    limit_label: str = ""
    written: Callable[[float], str] = number


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    label: str
    strong: bool = False


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    ok: bool
    on_scale: bool
    """Whether the height means a value; else the column's symbol stands at the top edge."""
    symbol: str


@dataclass(frozen=True)
class Drawn:
    """A series with its places."""

    label: str
    look: str
    lines: tuple[str, ...]
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Panel:
    title: str
    heading: tuple[Tick, ...]
    """The title, line by line."""
    top: float
    ticks: tuple[Tick, ...]
    series: tuple[Drawn, ...]
    limit: float | None
    limit_label: str


@dataclass(frozen=True)
class Hit:
    """The strip of the chart that belongs to a column."""

    x: float
    left: float
    width: float
    column: Column
    tip: tuple[str, ...]
    """What is said when it is pointed at, line by line."""


@dataclass(frozen=True)
class Flag:
    """What is marked: a line down to the axis, and words beside its top."""

    x: float
    line: int
    """Counted from the top."""
    text: str
    before: bool
    """Whether the words stand to the left."""


@dataclass(frozen=True)
class Chart:
    sheet: Sheet
    label: str
    height: float
    top: float
    baseline: float
    panels: tuple[Panel, ...]
    labels: tuple[Tick, ...]
    flags: tuple[Flag, ...]
    hits: tuple[Hit, ...]
    narrow: Chart | None = None
    """The same for a phone."""

    @property
    def drawings(self) -> tuple[Chart, ...]:
        return (self, self.narrow) if self.narrow else (self,)

    @property
    def legend(self) -> tuple[Drawn, ...]:
        """Each style once, in the order in which it is drawn."""
        found = {drawn.look: drawn for panel in self.panels for drawn in panel.series}
        return tuple(found.values())


@dataclass(frozen=True)
class LogScale:
    """Logarithmic, from a whole decade to another; zero stands below, on a line of its own."""

    low: int
    high: int
    top: float
    bottom: float
    has_zero: bool

    def y(self, value: float) -> float:
        if value <= 0:
            return round(self.bottom, 1)
        floor = self.bottom - (14 if self.has_zero else 0)
        part = (min(math.log10(value), self.high) - self.low) / (self.high - self.low)
        return round(floor - max(0.0, part) * (floor - self.top), 1)

    @property
    def ticks(self) -> tuple[Tick, ...]:
        step = max(1, math.ceil((self.high - self.low) / 5))
        decades = range(self.low, self.high + 1, step)
        zero = (Tick(self.y(0), "0"),) if self.has_zero else ()
        return (*zero, *(Tick(self.y(10.0**d), f"{10.0**d:g}") for d in decades))


def draw(label: str, columns: Sequence[Column], plots: Sequence[Plot]) -> Chart:
    """The geometry of a chart, wide and narrow."""
    return replace(_draw(WIDE, label, columns, plots), narrow=_draw(NARROW, label, columns, plots))


def _draw(sheet: Sheet, label: str, columns: Sequence[Column], plots: Sequence[Plot]) -> Chart:
    axis, flags, panels = sheet.axis, tuple(_flags(sheet, columns)), []
    at = 2 * LINE if flags else 0.0
    for plot in plots:
        heading = textwrap.wrap(plot.title, sheet.title) or [""]
        at += 22 + LINE * len(heading)
        panels.append(_panel(sheet, plot, heading, columns, at))
        at += plot.height + 10
    labels = name_labels(sheet, columns)
    deepest = max((len(tick.label) for tick in labels), default=0)
    step = (axis.right - axis.left) / max(1, len(columns))
    touched = sheet.most_hits is None or len(columns) <= sheet.most_hits
    return Chart(
        sheet=sheet,
        label=label,
        height=at - 10 + 24 + deepest * 4.6,
        top=panels[0].top if panels else at,
        baseline=at - 10,
        panels=tuple(panels),
        labels=labels,
        flags=flags,
        hits=tuple(
            Hit(
                axis.at((i + 0.5) / len(columns)),
                round(axis.left + i * step, 1),
                round(step, 1),
                column,
                tuple(_tip(i, column, plots)),
            )
            for i, column in enumerate(columns)
            if touched
        ),
    )


def _flags(sheet: Sheet, columns: Sequence[Column]) -> Iterator[Flag]:
    """Marks take turns at two lines."""
    line = 0
    for index, column in enumerate(columns):
        x = sheet.axis.at((index + 0.5) / len(columns))
        marks = (" and ".join(column.marks),) if sheet.one_line else column.marks
        for text in marks:
            if text:
                yield Flag(x, line % 2, text, x > sheet.turn * sheet.width)
                line += 1


def _tip(at: int, column: Column, plots: Sequence[Plot]) -> Iterator[str]:
    yield f"{column.symbol} {column.name}".lstrip()
    yield from (f"<--- {mark}" for mark in column.marks)
    for plot in plots:
        for series in plot.series:
            value = series.values[at]
            if value is not None:
                yield f"{series.label.partition(': ')[0]} {plot.written(value)}"
    if column.said:
        yield column.said


def _panel(
    sheet: Sheet, plot: Plot, heading: Sequence[str], columns: Sequence[Column], top: float
) -> Panel:
    values = [v for series in plot.series for v in series.values if v is not None]
    known = [v for v in values if v > 0 and math.isfinite(v)]
    known += [plot.limit, 10 * plot.limit] if plot.limit else []
    low = math.floor(math.log10(min(known))) if known else -8
    high = math.ceil(math.log10(max(known))) if known else -6
    scale = LogScale(low, max(high, low + 2), top, top + plot.height, has_zero=0.0 in values)
    return Panel(
        plot.title,
        tuple(Tick(top - LINE * (len(heading) - i), text) for i, text in enumerate(heading)),
        top,
        scale.ticks,
        tuple(_drawn(sheet, series, columns, scale) for series in plot.series),
        scale.y(plot.limit) if plot.limit else None,
        plot.limit_label,
    )


def _drawn(sheet: Sheet, series: Series, columns: Sequence[Column], scale: LogScale) -> Drawn:
    dots: list[Dot] = []
    lines: list[list[str]] = [[]]
    for index, (column, value) in enumerate(zip(columns, series.values, strict=True)):
        x = sheet.axis.at((index + 0.5) / len(columns))
        on_scale = value is not None and not math.isnan(value)
        y = scale.y(value) if value is not None and on_scale else scale.top + 7
        if on_scale:
            lines[-1].append(f"{x},{y}")
        else:  # a hole in the line, not a bridge over what was not measured
            lines.append([])
        ok = column.ok if series.ok is None else series.ok[index]
        if series.dots and (len(columns) <= sheet.most_dots or not ok or column.marks):
            dots.append(Dot(x, y, ok, on_scale, column.symbol))
    paths = tuple(" ".join(line) for line in lines if line)
    return Drawn(series.label, series.look, paths, tuple(dots))


def name_labels(sheet: Sheet, columns: Sequence[Column]) -> tuple[Tick, ...]:
    """Names along the axis, thinned evenly; a marked point keeps its name and silences others."""
    step = math.ceil(len(columns) / sheet.most_labels)
    marked = [index for index, column in enumerate(columns) if column.marks]
    return tuple(
        Tick(
            sheet.axis.at((index + 0.5) / len(columns)),
            cut(column.name, sheet.letters),
            bool(column.marks),
        )
        for index, column in enumerate(columns)
        if column.marks
        or (index % step == 0 and all(abs(index - other) >= step for other in marked))
    )
