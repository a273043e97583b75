"""The token heatmaps: points by token positions, binned by maximum to a size one can look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from driftwalk.layer_drift import LayerDrift
from driftwalk.measure.tokens import TokenErrors
from driftwalk.result import Report

from .numbers import cut, number

MOST_LINES, MOST_COLUMNS, LEVELS = 80, 128, 9
MOST_NAMES = 72
"""Columns that still have room for a text above them."""
BEYOND = LEVELS
"""The level of what is not finite."""

Profile = list[float | None]
_Pick = Callable[[LayerDrift], TokenErrors]


@dataclass(frozen=True)
class Line:
    """One point, or several merged, down the side."""

    label: str
    point: str
    ok: bool


@dataclass(frozen=True)
class Heatmap:
    """Errors of one kind along one token axis (an encoder's or a decoder's)."""

    title: str
    hint: str
    lines: tuple[Line, ...]
    columns: tuple[str, ...]
    """What each column stands for, in full."""
    names: tuple[str, ...]
    """Short texts above the columns; empty where they would not fit."""
    binned: bool
    paths: tuple[str, ...]
    """One SVG path per level, in units of fields; the last is for what is not finite."""
    values: tuple[tuple[str | None, ...], ...]
    low: str
    high: str

    @property
    def data(self) -> dict[str, object]:
        """What the page's script needs to say which field is pointed at."""
        lines = [line.label for line in self.lines]
        return {"lines": lines, "columns": self.columns, "values": self.values}


@dataclass(frozen=True)
class _Axis:
    """The points that share one token axis."""

    decoder: bool
    batch: int
    width: int


@dataclass(frozen=True)
class _Field:
    """A whole heatmap before it is drawn."""

    title: str
    hint: str
    lines: tuple[Line, ...]
    values: tuple[Profile, ...]


def heatmaps(report: Report) -> tuple[Heatmap, ...]:
    """Total and introduced error, for each token axis."""
    axes: dict[_Axis, list[LayerDrift]] = {}
    for layer in report.layers:
        if layer.tokens and layer.tokens[0]:
            axis = _Axis(_is_decoder(layer, report), len(layer.tokens), len(layer.tokens[0]))
            axes.setdefault(axis, []).append(layer)
    both = len({axis.decoder for axis in axes}) > 1
    return tuple(
        heatmap
        for axis, layers in axes.items()
        for heatmap in _axis_heatmaps(report, axis, layers, both)
    )


def _is_decoder(layer: LayerDrift, report: Report) -> bool:
    name = layer.point.name
    inputs = report.probe.inputs
    return name.startswith("decoder.") or (
        not name.startswith("encoder.") and any(given.startswith("decoder_") for given in inputs)
    )


def _axis_heatmaps(
    report: Report, axis: _Axis, layers: Sequence[LayerDrift], both: bool
) -> Iterable[Heatmap]:
    """The two kinds of error on one scale of colours, so that they can be compared."""
    across = math.ceil(axis.batch * axis.width / MOST_COLUMNS)
    total = axis.batch * axis.width
    bins = [range(i, min(i + across, total)) for i in range(0, total, across)]
    half = ("decoder: " if axis.decoder else "encoder: ") if both else ""
    fields = [
        _field(f"{half}total error", "candidate against reference", layers, bins, _total),
    ]
    blamed = [layer for layer in layers if layer.blame and layer.blame.tokens]
    if blamed:
        hint = "what each layer made itself of the states it was given"
        fields.append(_field(f"{half}introduced error", hint, blamed, bins, _introduced))
    known = [v for field in fields for line in field.values for v in line if _counts(v)]
    if not any(v is not None for field in fields for line in field.values for v in line):
        return
    low, high = _scale(layers, [v for v in known if v])
    names = _names(report, axis)
    columns = tuple(_column(positions, axis.width, names) for positions in bins)
    short = (
        tuple(cut(name, 14) for name in names) if across == 1 and len(bins) <= MOST_NAMES else ()
    )
    down = math.ceil(len(layers) / MOST_LINES)
    for field in fields:
        yield Heatmap(
            title=field.title,
            hint=field.hint,
            lines=field.lines,
            columns=columns,
            names=short,
            binned=across > 1 or down > 1,
            paths=field_paths(field.values, low, high),
            values=tuple(tuple(None if v is None else number(v) for v in f) for f in field.values),
            low=number(10**low),
            high=number(10**high),
        )


def _counts(value: float | None) -> bool:
    return value is not None and value > 0 and math.isfinite(value)


def _total(layer: LayerDrift) -> TokenErrors:
    return layer.tokens or ()


def _introduced(layer: LayerDrift) -> TokenErrors:
    return layer.blame.tokens or () if layer.blame else ()


def _field(
    title: str, hint: str, layers: Sequence[LayerDrift], bins: Sequence[range], pick: _Pick
) -> _Field:
    down = math.ceil(len(layers) / MOST_LINES)
    lines, values = [], []
    for start in range(0, len(layers), down):
        group = layers[start : start + down]
        profiles = [_relative(layer, pick(layer)) for layer in group]
        lines.append(_line(group))
        values.append([_most(p[i] for p in profiles for i in positions) for positions in bins])
    return _Field(title, hint, tuple(lines), tuple(values))


def _relative(layer: LayerDrift, tokens: TokenErrors) -> Profile:
    """Each token's error over the root-mean-square norm of the layer's tokens.

    The whole error over `rel_l2` is the whole norm: so points of any size share one colour scale.
    """
    flat = [value for row in tokens for value in row]
    typical = _typical(layer)
    return [None if value is None else value / typical for value in flat]


def _typical(layer: LayerDrift) -> float:
    """The norm of a typical token of a point; 1 where it cannot be told."""
    flat = [value for row in layer.tokens or () for value in row]
    known = [value for value in flat if value is not None and math.isfinite(value)]
    if layer.truth is not None and layer.truth.scale > 0:
        return layer.truth.scale / math.sqrt(max(1, sum(value is not None for value in flat)))
    error = math.sqrt(sum(value * value for value in known))
    rel_l2 = layer.metrics.rel_l2 if layer.metrics else math.nan
    if not error or not rel_l2 or not math.isfinite(rel_l2) or not math.isfinite(error):
        return 1.0
    return error / rel_l2 / math.sqrt(len(known))


def _scale(layers: Sequence[LayerDrift], values: Sequence[float]) -> tuple[float, float]:
    """Ends of the colour scale, in decades: up to where an allowance would be used up.

    So a run within tolerance looks pale, and noise of one size does not fill the whole scale.
    """
    if not values:
        return -9.0, -7.0
    ends = list(values)
    for layer in layers:
        needed = layer.tolerance.needed if layer.tolerance else 0.0
        worst = _most(_relative(layer, layer.tokens or ()))
        if layer.ok and worst and math.isfinite(worst) and 0 < needed < 1:
            ends.append(worst / needed)
    high = math.log10(max(ends))
    return min(math.log10(min(values)), high - 2), high


def _names(report: Report, axis: _Axis) -> list[str]:
    tokens = report.probe.tokens
    fits = len(tokens) == axis.batch and all(len(row) == axis.width for row in tokens)
    return [token for row in tokens for token in row] if fits and not axis.decoder else []


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _column(positions: range, width: int, names: Sequence[str]) -> str:
    row, token = divmod(positions[0], width)
    text = f"row {row}, token {token}"
    if len(positions) > 1:
        last_row, last = divmod(positions[-1], width)
        return f"{text} to row {last_row}, token {last}"
    return f"{text} {cut(names[positions[0]], 40)}" if names else text


def _line(group: Sequence[LayerDrift]) -> Line:
    name, last = cut(group[0].point.name, 40), cut(group[-1].point.name, 40)
    label = name if len(group) == 1 else f"{name} to {last}"
    return Line(label, group[0].point.name, all(layer.ok for layer in group))


def field_paths(values: Sequence[Profile], low: float, high: float) -> tuple[str, ...]:
    """Runs of equal fields, gathered by level: a few bytes a field, whatever their number."""
    found: list[list[str]] = [[] for _ in range(LEVELS + 1)]
    for y, line in enumerate(values):
        levels = [None if value is None else _level(value, low, high) for value in line]
        start = 0
        for x in range(1, len(levels) + 1):
            if x < len(levels) and levels[x] == levels[start]:
                continue
            level = levels[start]
            if level is not None:
                found[level].append(f"M{start} {y}h{x - start}v1H{start}z")
            start = x
    return tuple("".join(parts) for parts in found)


def _level(value: float, low: float, high: float) -> int:
    if not math.isfinite(value):
        return BEYOND
    if value <= 0:
        return 0
    part = (math.log10(value) - low) / (high - low)
    return min(LEVELS - 1, max(0, int(part * LEVELS)))
