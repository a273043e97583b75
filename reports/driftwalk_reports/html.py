"""A result as one HTML file that needs no network, no server and no JavaScript to be read."""

from __future__ import annotations

from collections.abc import Sequence

from driftwalk.result import Report

from .charts import blame_chart, drift_chart
from .door import renderer
from .heatmap import LEVELS, heatmaps
from .layout import SYMBOLS
from .numbers import cut
from .page import fill, inline_json
from .studies.effects import effects
from .view import look

MOST_FULL = 1000
"""Rows that all carry their details; of more, only those that failed or are marked."""


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
        effects=effects(report),
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
