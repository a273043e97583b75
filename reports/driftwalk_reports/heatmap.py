"""Heatmaps: points by token positions, binned by maximum to a size that one can look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from driftwalk.layer_drift import LayerDrift
from driftwalk.measure.tokens import TokenErrors
from driftwalk.result import Report

from .numbers import cut, number

MOST_LINES, MOST_COLUMNS, LEVELS = 80, 128, 9
MOST_ROWS = 16
"""Rows of a batch that stand apart; more of them follow each other without a gap."""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Steps between the token numbers along an axis."""
FOOT = 36.0
"""Room below the fields for token numbers and the name of the axis."""
MOST_NAMES = 72
"""Columns that still have room for a text above them."""
BEYOND = LEVELS
"""The level of what is not finite."""

Profile = Sequence[float | None]


@dataclass(frozen=True)
class Frame:
    """Where a field of lines and columns lies in its SVG, 1000 wide; texts lean above it."""

    left: float
    top: float
    step: float
    tall: float
    height: float
    names: tuple[str, ...]


def frame(left: float, lines: int, columns: int, names: Sequence[str] = ()) -> Frame:
    """Room for so many lines and columns; without names where there are too many of them."""
    shown = tuple(names) if columns <= MOST_NAMES else ()
    slant = 14 + 5 * max(map(len, shown)) if shown else 0
    top, tall = 8.0 + slant, 18.0 if lines <= 40 else 12.0
    step = round(min(46.0, (1000 - left - slant) / columns), 4)
    return Frame(left, top, step, tall, top + lines * tall + 4, shown)


@dataclass(frozen=True)
class Span:
    """One row of the batch: where its fields lie, in fields, and the tokens numbered below it."""

    label: str
    at: int
    count: int
    ticks: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class HeatLine:
    """One point, or several merged, down the side."""

    label: str
    point: str
    ok: bool


@dataclass(frozen=True)
class Heatmap:
    """Numbers of one kind along one token axis."""

    title: str
    hint: str
    lines: tuple[HeatLine, ...]
    columns: tuple[str, ...]
    """What each column stands for, in full; nothing for the gap between two rows of a batch."""
    spans: tuple[Span, ...]
    frame: Frame
    binned: bool
    paths: tuple[str, ...]
    """One SVG path per level, in units of fields; the last is for what is not finite."""
    values: tuple[tuple[str | None, ...], ...]
    low: str
    high: str
    along: str = "token"
    """What a column is."""
    blank: str = "padding"
    """Why a field may have no value."""

    @property
    def data(self) -> dict[str, object]:
        """What the page's script needs to say which field is pointed at."""
        return {
            "lines": [line.label for line in self.lines],
            "columns": self.columns,
            "values": self.values,
            "blank": self.blank,
        }


@dataclass(frozen=True)
class Parts:
    """Which columns are drawn as one field: bins that never reach into another row."""

    spans: tuple[Span, ...]
    bins: tuple[range | None, ...]
    """None is the gap between two rows."""
    whole: bool
    """Whether every field is one token."""


def parted(widths: Sequence[int]) -> Parts:
    """The fields of a batch whose rows have so many tokens each."""
    step = max(1, math.ceil(sum(widths) / MOST_COLUMNS))
    rows = list(widths) if len(widths) <= MOST_ROWS else [sum(widths)]
    spans: list[Span] = []
    bins: list[range | None] = []
    start = 0
    for row, width in enumerate(rows):
        bins += [None] if spans else []
        own = [range(start + i, start + min(i + step, width)) for i in range(0, width, step)]
        label = f"row {row}" if len(rows) > 1 else "all rows" if len(widths) > 1 else ""
        ticks = _ticks(width, step) if len(rows) == len(widths) else ()
        spans.append(Span(label, len(bins), len(own), ticks))
        bins += own
        start += width
    return Parts(tuple(spans), tuple(bins), step == 1)


def _ticks(width: int, step: int) -> tuple[tuple[int, str], ...]:
    """About ten numbers of tokens, each with the field that it stands below."""
    apart = next((size for size in TICKS if size * 10 >= width), TICKS[-1])
    return tuple((token // step, str(token)) for token in range(0, width, apart))


def heatmap(
    title: str,
    hint: str,
    points: Sequence[tuple[str, bool]],
    columns: Sequence[str],
    names: Sequence[str],
    parts: Parts,
    fields: Sequence[Profile],
    ends: tuple[float, float],
    written: Callable[[float], str] = number,
) -> Heatmap:
    """Points (a name, and whether it is fine) by columns; `fields` are the values in bins."""
    groups = _bins(len(points), MOST_LINES)
    shown = names if parts.whole else ()
    short = [cut(shown[b[0]], 14) if b else "" for b in parts.bins] if shown else []
    low, high = ends
    place = frame(160.0, len(groups), len(parts.bins), short)
    return Heatmap(
        title=title,
        hint=hint,
        lines=tuple(
            HeatLine(
                _span(points[group[0]][0], points[group[-1]][0], 40),
                points[group[0]][0],
                all(points[i][1] for i in group),
            )
            for group in groups
        ),
        columns=tuple(_span(columns[b[0]], columns[b[-1]], 60) if b else "" for b in parts.bins),
        spans=parts.spans,
        frame=replace(place, height=place.height + FOOT),
        binned=len(groups) < len(points) or not parts.whole,
        paths=field_paths(fields, low, high),
        values=tuple(tuple(None if v is None else written(v) for v in line) for line in fields),
        low=written(10**low),
        high=written(10**high),
    )


def _bins(count: int, most: int) -> list[range]:
    step = math.ceil(count / most)
    return [range(i, min(i + step, count)) for i in range(0, count, step or 1)]


def _span(first: str, last: str, most: int) -> str:
    return cut(first, most) if first == last else f"{cut(first, most)} to {cut(last, most)}"


def binned(values: Sequence[Profile], parts: Parts) -> list[Profile]:
    """The largest of each bin."""
    return [
        [_most(values[line][i] for line in group for i in part or ()) for part in parts.bins]
        for group in _bins(len(values), MOST_LINES)
    ]


def _most(values: Iterable[float | None]) -> float | None:
    """The largest; NaN, which is larger than nothing, wins."""
    known = [value for value in values if value is not None]
    return next((v for v in known if math.isnan(v)), max(known)) if known else None


def scale(fields: Iterable[Profile], beyond: Iterable[float] = ()) -> tuple[float, float]:
    """Ends of the colour scale, in decades, which reaches `beyond`, too.

    It spans at least two, lest noise of one size fill all colours.
    """
    known = [v for line in fields for v in line if v is not None and 0 < v < math.inf]
    if not known:
        return -9.0, -7.0
    high = math.log10(max([*known, *beyond]))
    return min(math.log10(min(known)), high - 2), high


def field_paths(values: Sequence[Profile], low: float, high: float) -> tuple[str, ...]:
    """Runs of equal fields, gathered by level: a few bytes a field, whatever their number."""
    paths: list[list[str]] = [[] for _ in range(LEVELS + 1)]
    for y, line in enumerate(values):
        levels = [None if value is None else _level(value, low, high) for value in line]
        start = 0
        for x in range(1, len(levels) + 1):
            if x < len(levels) and levels[x] == levels[start]:
                continue
            level = levels[start]
            if level is not None:
                paths[level].append(f"M{start} {y}h{x - start}v1H{start}z")
            start = x
    return tuple("".join(parts) for parts in paths)


def _level(value: float, low: float, high: float) -> int:
    if not math.isfinite(value):
        return BEYOND
    if value <= 0:
        return 0
    part = (math.log10(value) - low) / (high - low)
    return min(LEVELS - 1, max(0, int(part * LEVELS)))


# The heatmaps of a drift report.


TokenAxis = tuple[bool, int, int]
"""What points share whose tokens stand below each other: whether of a decoder, batch and width."""


def heatmaps(report: Report) -> tuple[Heatmap, ...]:
    """Total and introduced error, for each token axis."""
    axes: dict[TokenAxis, list[LayerDrift]] = {}
    for layer in report.layers:
        if layer.tokens and layer.tokens[0]:
            axis = _is_decoder(layer, report), len(layer.tokens), len(layer.tokens[0])
            axes.setdefault(axis, []).append(layer)
    both = len({decoder for decoder, *_ in axes}) > 1
    return tuple(
        drawn
        for axis, layers in axes.items()
        for half in [("decoder: " if axis[0] else "encoder: ") if both else ""]
        for drawn in _of_axis(report, axis, layers, half)
    )


def _is_decoder(layer: LayerDrift, report: Report) -> bool:
    name = layer.point.name
    inputs = report.probe.inputs
    return name.startswith("decoder.") or (
        not name.startswith("encoder.") and any(given.startswith("decoder_") for given in inputs)
    )


def _of_axis(
    report: Report, axis: TokenAxis, layers: Sequence[LayerDrift], half: str
) -> Iterator[Heatmap]:
    """The two kinds of error on one scale of colours, so that they can be compared."""
    decoder, batch, width = axis
    fields_of = parted([width] * batch)
    total = [_relative(layer, layer.tokens or ()) for layer in layers]
    parts = [("total error", "candidate against reference", layers, binned(total, fields_of))]
    blamed = [layer for layer in layers if layer.blame and layer.blame.tokens]
    if blamed:
        own = [_relative(x, x.blame.tokens) for x in blamed if x.blame and x.blame.tokens]
        hint = "what each layer made itself of the states it was given"
        parts.append(("introduced error", hint, blamed, binned(own, fields_of)))
    fields = [line for *_, drawn in parts for line in drawn]
    if not any(value is not None for line in fields for value in line):
        return
    ends = scale(fields, _allowed(layers, total))
    tokens = report.probe.tokens
    fits = len(tokens) == batch and all(len(row) == width for row in tokens)
    names = [token for row in tokens for token in row] if fits and not decoder else []
    columns = [
        f"row {at // width}, token {at % width}" + (f" {names[at]}" if names else "")
        for at in range(batch * width)
    ]
    counted = [any(line[at] is not None for line in total) for at in range(len(columns))]
    names = [name if there else "" for name, there in zip(names, counted, strict=False)]
    for title, hint, shown, drawn in parts:
        points = [(layer.point.name, layer.ok) for layer in shown]
        yield heatmap(f"{half}{title}", hint, points, columns, names, fields_of, drawn, ends)


def _relative(layer: LayerDrift, tokens: TokenErrors) -> Profile:
    """Each token's error over the root-mean-square norm of the layer's tokens.

    The whole error over `rel_l2` is the whole norm: so points of any size share one colour scale.
    """
    typical = _typical(layer)
    return [None if value is None else value / typical for row in tokens for value in row]


def _typical(layer: LayerDrift) -> float:
    """The norm of a typical token of a point; 1 where it cannot be told."""
    there = [value for row in layer.tokens or () for value in row if value is not None]
    if layer.truth is not None and layer.truth.scale > 0:
        return layer.truth.scale / math.sqrt(max(1, len(there)))
    known = [value for value in there if math.isfinite(value)]
    error = math.sqrt(sum(value * value for value in known))
    rel_l2 = layer.metrics.rel_l2 if layer.metrics else math.nan
    if not error or not rel_l2 or not math.isfinite(rel_l2) or not math.isfinite(error):
        return 1.0
    return error / rel_l2 / math.sqrt(len(known))


def _allowed(layers: Sequence[LayerDrift], profiles: Sequence[Profile]) -> Iterator[float]:
    """Where an allowance would be used up: so a run within tolerance looks pale."""
    for layer, profile in zip(layers, profiles, strict=True):
        needed = layer.tolerance.needed if layer.tolerance else 0.0
        worst = _most(profile)
        if layer.ok and worst and math.isfinite(worst) and 0 < needed < 1:
            yield worst / needed
