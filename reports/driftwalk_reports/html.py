"""A verification as one HTML file that needs no network, no server and no JavaScript to be read,
with charts of its drift and its blame along the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report

from .channels import channel_chart
from .chart import Chart, Column, Plot, Series, draw
from .door import renderer
from .format_chart import cost_chart
from .format_costs import HEAD, LEGEND, STORED_HEAD, TITLE
from .heatmap import LEVELS, heatmaps
from .layout import SYMBOLS
from .numbers import cut, used
from .page import fill, inline_json
from .probe_words import PERCENTILES, WORST
from .routing_words import RoutingView
from .rows import Row
from .sentences import quoted
from .studies.effects import effects
from .view import look

MOST_FULL = 1000
"""Rows that all carry their details; of more, only those that failed or are marked."""
MOST_OTHERS = 6
"""Candidates drawn beside the page's own; a chart of more is a tangle."""

Value = float | None


@renderer
def render(report: Report, others: Sequence[tuple[str, Report]] = ()) -> str:
    """The page of one candidate; `others` are links to, and results of, candidates beside it."""
    view = look(report)
    maps = heatmaps(report)
    full = len(view.rows) <= MOST_FULL
    return fill(
        "report.html.j2",
        view,
        charts=[
            ("curve", drift_chart(report, view.rows, [other for _, other in others])),
            ("blame", blame_chart(report, view.rows)),
        ],
        blamed="reference" if report.at_fault == "reference" else "candidate",
        channels=channel_chart(report),
        effects=effects(report),
        cost_chart=cost_chart(report),
        cost_rows=[row.cells for row in view.format.rows] if view.format else [],
        costs_title=TITLE,
        costs_head=HEAD,
        costs_legend=LEGEND,
        stored_head=STORED_HEAD,
        percentiles=PERCENTILES,
        worst_head=WORST,
        routing=RoutingView.of(report),
        heatmaps=maps,
        levels=LEVELS,
        data=inline_json([one.data for one in maps]),
        texts=[cut(text, 500) for text in report.probe.texts],
        detailed={row.index for row in view.rows if full or not row.ok or row.marks},
        others=[
            (href, SYMBOLS[other.verdict], other.verdict, cut(other.candidate.spec, 60))
            for href, other in others
        ],
    )


def drift_chart(report: Report, rows: Sequence[Row], others: Sequence[Report] = ()) -> Chart | None:
    """Error, and share of the allowance used, along the model; None without numbers."""
    if not any(row.error is not None for row in rows):
        return None
    layers = report.layers
    truth = any(layer.truth is not None for layer in layers)
    beside = [
        (f"other{i}", cut(other.candidate.spec, 40), _aligned(report, other))
        for i, other in enumerate(others[:MOST_OTHERS])
    ]

    def all_of_them(own: Series, pick: Callable[[LayerDrift], Value]) -> list[Series]:
        return [own] + [
            Series(
                label,
                style,
                [pick(layer) if layer else None for layer in theirs],
                ok=[layer is None or layer.ok for layer in theirs],
            )
            for style, label, theirs in beside
        ]

    candidate = f"candidate {cut(report.candidate.spec, 40)}"
    reference = f"reference {cut(report.reference.spec, 40)}"
    accused = truth and report.at_fault == "reference"  # then the signs stand at its line
    own = Series(candidate, "candidate", list(map(_error, layers)), dots=not accused)
    errors = all_of_them(own, _error)
    if truth:
        lines = (
            ("allowance", "allowance", "allowed", False),
            ("yardstick: eager PyTorch at this dtype", "yardstick", "yardstick", False),
            (reference, "reference", "reference", accused),
        )
        errors[:0] = [
            Series(label, style, [_from_truth(layer, side) for layer in layers], dots)
            for label, style, side, dots in lines
        ]
    title = "error against the truth (float64)" if truth else "difference from the reference"
    if truth and report.format is not None:  # each side has its own
        title += ", the candidate's against what its format declares"
    judged = (reference, "reference") if accused else (candidate, "candidate")
    shares = all_of_them(Series(*judged, list(map(_share, layers))), _share)
    return draw(
        "Drift along the model, on log scales; the table below has the same numbers.",
        [
            Column(
                row.name,
                row.symbol,
                row.ok,
                row.marks,
                row.sentence if _share(layer) is None and layer.verdict != "ok" else "",
            )
            for layer, row in zip(layers, rows, strict=True)
        ],
        [
            Plot(f"{title}: relative L2", errors, 200.0),
            Plot(
                "share of the allowance used, in the norm that uses most of it",
                shares,
                130.0,
                1.0,
                "all of the allowance",
                lambda value: f"{used(value)} of the allowance",
            ),
            *_meaning(report),
        ],
    )


def _meaning(report: Report) -> list[Plot]:
    """The second axis: drift in units of meaning."""
    contrast = report.contrast
    if contrast is None or not contrast.shares:
        return []
    shares = [contrast.shares.get(layer.point.name) for layer in report.layers]
    series = Series("drift in units of meaning", "gain", shares, ok=[True] * len(shares))
    title = f"drift over the distance between {quoted(contrast.first, contrast.second)}"
    return [Plot(title, [series], 90.0)]


def blame_chart(report: Report, rows: Sequence[Row]) -> Chart | None:
    """What each layer made and what it was handed, and how much it amplifies; None unblamed."""
    blamed = [
        (row, layer.blame, layer.truth.scale if layer.truth else 0.0)
        for layer, row in zip(report.layers, rows, strict=True)
        if layer.blame
    ]
    if not blamed:
        return None
    fine = [True] * len(blamed)
    allowed = [
        _over(blame.norms["allowed"].l2, scale) if "allowed" in blame.norms else None
        for _, blame, scale in blamed
    ]
    inherited = [_over(blame.inherited, scale) for _, blame, scale in blamed]
    introduced = [_over(blame.introduced, scale) for _, blame, scale in blamed]
    gains = [blame.gain if 0 < blame.gain < math.inf else None for _, blame, _ in blamed]
    parts = (
        Series("allowed to introduce", "allowance", allowed, dots=False),
        Series("inherited: handed down from before", "inherited", inherited, ok=fine),
        Series("introduced: made here", "introduced", introduced),
    )
    label = "gain: inherited error over the error of the layer before"
    return draw(
        "Introduced and inherited error of each layer, and its gain, on log scales; "
        "the rows of the table have the same numbers.",
        [Column(row.name, row.symbol, not one.guilty, row.marks) for row, one, _ in blamed],
        [
            Plot("introduced and inherited error, relative to the state (L2)", parts, 190.0),
            Plot(
                "gain (1: handed on as it came)", [Series(label, "gain", gains, ok=fine)], 80.0, 1.0
            ),
        ],
    )


def _error(layer: LayerDrift) -> Value:
    """Relative L2: against the truth where there is one, else against the reference."""
    if layer.metrics is None or layer.verdict in ("nonfinite", "unknown"):
        return None
    found = _from_truth(layer, "candidate")
    return layer.metrics.rel_l2 if found is None else found


def _from_truth(layer: LayerDrift, side: str) -> Value:
    """A side's error against the truth, relative to the state."""
    if layer.truth is None or side not in layer.truth.norms:
        return None
    return _over(layer.truth.norms[side].l2, layer.truth.scale)


def _over(value: float, scale: float) -> Value:
    return value / scale if scale > 0 and math.isfinite(value) else None


def _share(layer: LayerDrift) -> Value:
    known = layer.tolerance is not None and layer.verdict not in ("nonfinite", "unknown")
    return layer.tolerance.needed if layer.tolerance and known else None


def _aligned(report: Report, other: Report) -> list[LayerDrift | None]:
    """Another candidate's layers at this page's points."""
    named = {layer.point.name: layer for layer in other.layers}
    return [named.get(layer.point.name) for layer in report.layers]
