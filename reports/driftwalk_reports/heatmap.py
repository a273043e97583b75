"""The token heatmap: points by token positions, binned by maximum to a size one can look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftwalk.result import LayerDrift, Report

from .numbers import clean, number

MOST_LINES, MOST_COLUMNS, LEVELS = 48, 64, 9

Profile = list[float | None]


@dataclass(frozen=True)
class Cell:
    """One coloured field: a level from 0 (least) to LEVELS - 1, and what stands behind it."""

    column: int
    level: int
    title: str


@dataclass(frozen=True)
class Line:
    label: str
    point: str
    ok: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Heatmap:
    """Points of one token axis (an encoder's or a decoder's)."""

    title: str
    columns: tuple[str, ...]
    named: bool
    """Whether every column is one token with a text of its own."""
    binned: bool
    lines: tuple[Line, ...]
    low: str
    high: str


def heatmaps(report: Report) -> tuple[Heatmap, ...]:
    """One heatmap per token axis; a cell is a token's error over that of a typical token's norm."""
    axes: dict[tuple[bool, int, int], list[LayerDrift]] = {}
    for layer in report.layers:
        if layer.tokens and layer.tokens[0]:
            key = (_is_decoder(layer, report), len(layer.tokens), len(layer.tokens[0]))
            axes.setdefault(key, []).append(layer)
    both = len({decoder for decoder, _, _ in axes}) > 1
    drawn = (
        _heatmap(layers, report, ("decoder" if key[0] else "encoder") if both else "", key)
        for key, layers in axes.items()
    )
    return tuple(one for one in drawn if one is not None)


def _is_decoder(layer: LayerDrift, report: Report) -> bool:
    name = layer.point.name
    inputs = report.probe.inputs
    return name.startswith("decoder.") or (
        not name.startswith("encoder.") and any(given.startswith("decoder_") for given in inputs)
    )


def _relative(layer: LayerDrift) -> Profile:
    """Each token's error over the root-mean-square norm of the layer's tokens.

    The whole error over `rel_l2` is the whole norm: so points of any size share one colour scale.
    """
    flat = [value for row in layer.tokens or () for value in row]
    known = [value for value in flat if value is not None and math.isfinite(value)]
    error = math.sqrt(sum(value * value for value in known))
    rel_l2 = layer.metrics.rel_l2 if layer.metrics else math.nan
    if not error or not rel_l2 or not math.isfinite(rel_l2) or not math.isfinite(error):
        return flat
    typical = error / rel_l2 / math.sqrt(len(known))
    return [None if value is None else value / typical for value in flat]


def _heatmap(
    layers: Sequence[LayerDrift], report: Report, title: str, key: tuple[bool, int, int]
) -> Heatmap | None:
    decoder, batch, width = key
    across = math.ceil(batch * width / MOST_COLUMNS)
    down = math.ceil(len(layers) / MOST_LINES)
    columns = [range(i, min(i + across, batch * width)) for i in range(0, batch * width, across)]
    names = _names(report, decoder, batch, width)
    merged: list[tuple[Sequence[LayerDrift], Profile]] = []
    for start in range(0, len(layers), down):
        group = layers[start : start + down]
        profiles = [_relative(layer) for layer in group]
        merged.append((group, [_most(p[i] for p in profiles for i in bin_) for bin_ in columns]))
    values = [v for _, line in merged for v in line if v and math.isfinite(v)]
    if not values:
        return None
    low, high = _scale(layers, values)
    labels = [_column(bin_, width, names) for bin_ in columns]
    return Heatmap(
        title=title,
        columns=tuple(clean(names[b[0]], 14) if names else "" for b in columns),
        named=across == 1 and bool(names) and len(columns) <= 40,
        binned=across > 1 or down > 1,
        lines=tuple(_line(group, line, labels, low, high) for group, line in merged),
        low=number(10**low),
        high=number(10**high),
    )


def _scale(layers: Sequence[LayerDrift], values: Sequence[float]) -> tuple[float, float]:
    """Ends of the colour scale, in decades: up to where an allowance would be used up.

    So a run within tolerance looks pale, and noise of one size does not fill the whole scale.
    """
    ends = list(values)
    for layer in layers:
        needed = layer.tolerance.needed if layer.tolerance else 0.0
        worst = _most(_relative(layer))
        if layer.ok and worst and math.isfinite(worst) and 0 < needed < 1:
            ends.append(worst / needed)
    high = math.log10(max(ends))
    return min(math.log10(min(values)), high - 2), high


def _names(report: Report, decoder: bool, batch: int, width: int) -> list[str]:
    tokens = report.probe.tokens
    if decoder or len(tokens) != batch or any(len(row) != width for row in tokens):
        return []
    return [token for row in tokens for token in row]


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _column(positions: range, width: int, names: Sequence[str]) -> str:
    row, token = divmod(positions[0], width)
    text = f"row {row}, token {token}"
    if len(positions) > 1:
        last_row, last = divmod(positions[-1], width)
        return f"{text} to row {last_row}, token {last}"
    return f"{text} {clean(names[positions[0]], 40)}" if names else text


def _line(
    group: Sequence[LayerDrift], values: Profile, labels: Sequence[str], low: float, high: float
) -> Line:
    name, last = clean(group[0].point.name, 40), clean(group[-1].point.name, 40)
    label = name if len(group) == 1 else f"{name} to {last}"
    cells = tuple(
        Cell(column, _level(value, low, high), f"{label}, {labels[column]}: {number(value)}")
        for column, value in enumerate(values)
        if value is not None
    )
    return Line(label, clean(group[0].point.name), all(layer.ok for layer in group), cells)


def _level(value: float, low: float, high: float) -> int:
    if value <= 0:
        return 0
    part = (math.log10(value) - low) / (high - low) if math.isfinite(value) else 1.0
    return min(LEVELS - 1, max(0, int(part * LEVELS)))
