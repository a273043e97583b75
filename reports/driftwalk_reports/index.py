"""Several results on one page: a matrix of verdicts, each a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftwalk.result import Report

from .door import renderer
from .layout import SYMBOLS, model_name
from .numbers import count, cut, used
from .page import fill
from .sentences import VERDICT_WORDS

VERDICTS = ("drift", "unverified", "pass")
"""The most urgent first."""


@dataclass(frozen=True)
class Cell:
    """One result: where its page is, and what it says."""

    href: str
    model: str
    candidate: str
    reference: str
    verdict: str
    symbol: str
    where: str
    cause: str
    closest: str
    flips: str
    created: str


@dataclass(frozen=True)
class Matrix:
    candidates: tuple[str, ...]
    lines: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]
    """A model, and its cells for each candidate."""


@renderer
def render(entries: Sequence[tuple[str, Report]]) -> str:
    """The index of a run of several candidates or models."""
    cells = [_cell(href, report) for href, report in entries]
    verdicts = [report.verdict for _, report in entries]
    worst = next((word for word in VERDICTS if word in verdicts), "unverified")
    parts = [f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts]
    total = f"{count(len(cells))} run{'s' if len(cells) != 1 else ''}"
    return fill(
        "index.html.j2",
        verdict=worst,
        symbol=SYMBOLS[worst],
        headline=f"{VERDICT_WORDS[worst]}: {total}: {', '.join(parts) or 'nothing'}.",
        matrix=_matrix(cells),
        cells=cells,
        tool=f"{entries[0][1].tool.name} {entries[0][1].tool.version}" if entries else "",
    )


def _where(report: Report) -> str:
    """The first divergence; a run whose drift is all known says so."""
    first = report.first_divergence
    mark = " (expected)" if report.as_expected else ""
    return f"{cut(first.point.name, 60)}{mark}" if first else ""


def _cell(href: str, report: Report) -> Cell:
    root = report.root_cause
    shares = [
        layer.tolerance.needed
        for layer in report.layers
        if layer.tolerance and layer.verdict != "nonfinite"
    ]
    said = report.outputs
    return Cell(
        href=href,
        model=model_name(report.model),
        candidate=cut(report.candidate.spec, 80),
        reference=cut(report.reference.spec, 80),
        verdict=report.verdict,
        symbol=SYMBOLS[report.verdict],
        where=_where(report),
        cause=cut(root.point.name, 60) if root else "",
        closest=used(max(shares)) if shares else "",
        flips=f"{count(said.flips)} of {count(said.positions)}" if said else "",
        created=report.created,
    )


def _matrix(cells: Sequence[Cell]) -> Matrix:
    candidates = tuple(dict.fromkeys(cell.candidate for cell in cells))
    models = tuple(dict.fromkeys(cell.model for cell in cells))
    return Matrix(
        candidates,
        tuple(
            (
                model,
                tuple(
                    tuple(c for c in cells if c.model == model and c.candidate == candidate)
                    for candidate in candidates
                ),
            )
            for model in models
        ),
    )
