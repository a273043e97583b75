"""The charts of a page: drift along the model, and blame."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

from .chart import Chart, Column, Plot, Series, draw
from .numbers import cut, number, used
from .rows import Row
from .sentences import quoted

MOST_OTHERS = 6
"""Candidates drawn beside the page's own; a chart of more is a tangle."""

Value = float | None
Pick = Callable[[LayerDrift], Value]


def drift_chart(report: Report, rows: Sequence[Row], others: Sequence[Report] = ()) -> Chart | None:
    """Error, and share of the allowance used, along the model; None without numbers."""
    if not any(row.error is not None for row in rows):
        return None
    truth = any(layer.truth is not None for layer in report.layers)
    siblings = [(f"other{i}", other) for i, other in enumerate(others[:MOST_OTHERS])]

    def along(pick: Pick, look: str, label: str, dots: bool = False) -> Series:
        return Series(label, look, tuple(pick(layer) for layer in report.layers), dots)

    def theirs(pick: Pick) -> list[Series]:
        return [
            Series(
                cut(other.candidate.spec, 40),
                look,
                tuple(pick(layer) if layer else None for layer in _aligned(report, other)),
                ok=tuple(layer is None or layer.ok for layer in _aligned(report, other)),
            )
            for look, other in siblings
        ]

    own = f"candidate {cut(report.candidate.spec, 40)}"
    other = f"reference {cut(report.reference.spec, 40)}"
    accused = truth and report.at_fault == "reference"  # then the signs stand at its line
    errors = [along(error, "candidate", own, dots=not accused), *theirs(error)]
    if truth:
        errors = [
            along(_of("allowed"), "allowance", "allowance"),
            along(_of("yardstick"), "yardstick", "yardstick: eager PyTorch at this dtype"),
            along(_of("reference"), "reference", other, dots=accused),
            *errors,
        ]
    title = "error against the truth (float64)" if truth else "difference from the reference"
    judged = ("reference", other) if accused else ("candidate", own)
    shares = [along(_share, *judged, dots=True), *theirs(_share)]
    return draw(
        "Drift along the model, on log scales; the table below has the same numbers.",
        [_column(layer, row) for layer, row in zip(report.layers, rows, strict=True)],
        [
            Plot(f"{title}: relative L2", tuple(errors), 200.0),
            Plot(
                "share of the allowance used, in the norm that uses most of it",
                tuple(shares),
                130.0,
                1.0,
                "all of the allowance",
            ),
            *_meaning(report),
        ],
    )


def _meaning(report: Report) -> list[Plot]:
    """The second axis: drift in units of meaning."""
    told = report.contrast
    if told is None or not told.shares:
        return []
    shares = tuple(told.shares.get(layer.point.name) for layer in report.layers)
    fine = tuple(True for _ in report.layers)
    title = f"drift over the distance between {quoted(told.first, told.second)}"
    return [Plot(title, (Series("drift in units of meaning", "gain", shares, ok=fine),), 90.0)]


def blame_chart(report: Report, rows: Sequence[Row]) -> Chart | None:
    """What each layer made and what it was handed, and how much it amplifies; None unblamed."""
    pairs = [(layer, row) for layer, row in zip(report.layers, rows, strict=True) if layer.blame]
    if not pairs:
        return None
    layers = [layer for layer, _ in pairs]

    fine = tuple(True for _ in layers)

    def along(look: str, label: str, pick: Pick) -> Series:
        return Series(label, look, tuple(pick(layer) for layer in layers), ok=fine)

    parts = (
        replace(along("allowance", "allowed to introduce", _allowed_own), dots=False),
        along("inherited", "inherited: handed down from before", _inherited),
        replace(along("introduced", "introduced: made here", _introduced), ok=None),
    )
    gains = along("gain", "gain: inherited error over the error of the layer before", _gain)
    return draw(
        "Introduced and inherited error of each layer, and its gain, on log scales; "
        "the rows of the table have the same numbers.",
        [_blamed(layer, row) for layer, row in pairs],
        [
            Plot("introduced and inherited error, relative to the state (L2)", parts, 190.0),
            Plot("gain (1: handed on as it came)", (gains,), 80.0, 1.0),
        ],
    )


def error(layer: LayerDrift) -> Value:
    """Relative L2: against the truth where there is one, else against the reference."""
    if layer.metrics is None or layer.verdict in ("nonfinite", "unknown"):
        return None
    found = _of("candidate")(layer)
    return layer.metrics.rel_l2 if found is None else found


def _of(side: str) -> Pick:
    """A side's error against the truth, relative to the state."""

    def pick(layer: LayerDrift) -> Value:
        if layer.truth is None or side not in layer.truth.norms:
            return None
        return _over(layer.truth.norms[side].l2, layer.truth.scale)

    return pick


def _over(value: float, scale: float) -> Value:
    return value / scale if scale > 0 and math.isfinite(value) else None


def _share(layer: LayerDrift) -> Value:
    known = layer.tolerance is not None and layer.verdict not in ("nonfinite", "unknown")
    return layer.tolerance.needed if layer.tolerance and known else None


def _scaled(layer: LayerDrift, value: float) -> Value:
    return _over(value, layer.truth.scale) if layer.truth else None


def _introduced(layer: LayerDrift) -> Value:
    return _scaled(layer, layer.blame.introduced) if layer.blame else None


def _inherited(layer: LayerDrift) -> Value:
    return _scaled(layer, layer.blame.inherited) if layer.blame else None


def _allowed_own(layer: LayerDrift) -> Value:
    if layer.blame is None or "allowed" not in layer.blame.norms:
        return None
    return _scaled(layer, layer.blame.norms["allowed"].l2)


def _gain(layer: LayerDrift) -> Value:
    gain = layer.blame.gain if layer.blame else 0.0
    return gain if gain > 0 and math.isfinite(gain) else None


def _aligned(report: Report, other: Report) -> list[LayerDrift | None]:
    """Another candidate's layers at this page's points."""
    named = {layer.point.name: layer for layer in other.layers}
    return [named.get(layer.point.name) for layer in report.layers]


def _column(layer: LayerDrift, row: Row) -> Column:
    lines = [f"{row.symbol} {row.name}: {row.verdict}", *(f"<--- {mark}" for mark in row.marks)]
    if (value := error(layer)) is not None:
        lines.append(f"error {number(value)}")
    sides = {side: _of(side)(layer) for side in ("yardstick", "allowed", "reference")}
    lines += [f"{side} {number(value)}" for side, value in sides.items() if value is not None]
    if (share := _share(layer)) is not None:
        lines.append(f"{used(share)} of the allowance")
    elif layer.verdict != "ok":
        lines.append(row.sentence)
    return Column(row.name, row.symbol, row.ok, row.marks, tuple(lines))


def _blamed(layer: LayerDrift, row: Row) -> Column:
    lines = [f"{row.symbol} {row.name}", *(f"<--- {mark}" for mark in row.marks)]
    found = {"introduced": _introduced, "inherited": _inherited, "allowed": _allowed_own}
    lines += [f"{name} {number(pick(layer))}" for name, pick in found.items()]
    lines.append(f"gain {number(_gain(layer))}")
    guilty = layer.blame is not None and layer.blame.guilty
    return Column(row.name, row.symbol, not guilty, row.marks, tuple(lines))
