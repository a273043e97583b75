"""Several results on one page: a matrix of verdicts, each a link to its own page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report, shapes_told
from driftwalk.tasks.generation.result import At, Generation

from .door import renderer
from .format_words import beyond
from .generation_words import step_name
from .layout import SYMBOLS, Sign, model_name
from .numbers import NOTHING, count, cut, used
from .page import fill
from .sentences import VERDICT_WORDS

Judged = Report | Generation
VERDICTS = ("drift", "unverified", "pass")
"""The most urgent first."""


@dataclass(frozen=True)
class Run:
    """One result: where its page is, and what it says."""

    href: str
    model: str
    candidate: str
    sign: Sign
    facts: tuple[str, ...]
    """The reference, first divergence, root cause, closest call, changed decisions, and when."""


@renderer
def render(entries: Sequence[tuple[str, Judged]]) -> str:
    """The index of a run of several candidates or models."""
    worst, headline = summary([report for _, report in entries])
    runs = runs_of(entries)
    return fill(
        "index.html.j2",
        verdict=worst,
        symbol=SYMBOLS[worst],
        headline=headline,
        models=list(dict.fromkeys(run.model for run in runs)),
        candidates=list(dict.fromkeys(run.candidate for run in runs)),
        runs=runs,
        tool=f"{entries[0][1].tool.name} {entries[0][1].tool.version}" if entries else "",
    )


def summary(reports: Sequence[Judged]) -> tuple[str, str]:
    """The worst verdict of all, and all of them in a sentence."""
    verdicts = [report.verdict for report in reports]
    worst = next((word for word in VERDICTS if word in verdicts), "unverified")
    parts = [f"{verdicts.count(v)} {v}" for v in VERDICTS if v in verdicts]
    total = f"{count(len(reports))} run{'s' if len(reports) != 1 else ''}"
    return worst, f"{VERDICT_WORDS[worst]}: {total}: {', '.join(parts) or 'nothing'}."


def runs_of(entries: Sequence[tuple[str, Judged]]) -> list[Run]:
    """A row for each; where several shapes of input were tried, with its shape."""
    shapes = shapes_told([report for _, report in entries])
    return [_run(*entry, shape) for entry, shape in zip(entries, shapes, strict=True)]


def _run(href: str, report: Judged, shape: str) -> Run:
    first, root = report.first_divergence, report.root_cause
    needed = [
        layer.tolerance.needed
        for layer in report.layers
        if layer.tolerance and layer.verdict != "nonfinite"
    ]
    closest = used(max(needed)) if needed else ""
    # A run whose drift is all known says so.
    expected = isinstance(report, Report) and report.as_expected
    where = f"{_place(first)}{' (expected)' * expected}" if first else ""
    detail = f"at {where}" if where else f"{closest} of the allowance" if closest else ""
    if not where and isinstance(report, Report) and beyond(report):
        detail = "its format costs too much"
    facts = (
        where,
        _place(root) if root else "",
        closest,
        _flips(report),
    )
    return Run(
        href,
        model_name(report.model) + (f" at {shape}" if shape else ""),
        cut(report.candidate.spec, 80),
        Sign(report.verdict, SYMBOLS[report.verdict], report.verdict, detail),
        (cut(report.reference.spec, 80), *(fact or NOTHING for fact in facts), report.created),
    )


def _place(found: LayerDrift | At) -> str:
    """A point; of a generation, also the step."""
    name = cut(found.point.name, 60)
    return f"{name} in {step_name(found.step)}" if isinstance(found, At) else name


def _flips(report: Judged) -> str:
    if isinstance(report, Generation):
        chosen = [len(step.tokens) for step in report.steps]
        return f"{count(sum(step.flips for step in report.steps))} of {count(sum(chosen))}"
    found = report.outputs
    return f"{count(found.flips)} of {count(found.positions)}" if found else ""
