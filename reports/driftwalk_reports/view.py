"""What to show, without markup: one `View` that terminal, HTML, Markdown and JUnit all draw from.

Every string of a view is safe to print, since those of the report are (door.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from driftwalk.adapter import BackendInfo
from driftwalk.mixture import Mixture
from driftwalk.result import ProbeInfo, Report

from . import sentences
from .exercised import TouchedRow, exercised_rows, exercised_sentences
from .numbers import NOTHING, ints, number
from .rows import Fact, Row, around, to_rows
from .story import Story, tell
from .studies.effects import patching_sentence, propagation_sentence
from .timing import Timing, timing

RUN_SYMBOLS = {"pass": "✓", "drift": "✗", "unverified": "?"}


@dataclass(frozen=True)
class Pair:
    """One thing, on both sides."""

    key: str
    reference: str
    candidate: str
    differs: bool


@dataclass(frozen=True)
class FlipRow:
    """One position where the top choice changed."""

    where: str
    token: str
    reference: str
    candidate: str
    gap: str
    tie: bool


@dataclass(frozen=True)
class View:
    """A whole report, in words."""

    verdict: str
    symbol: str
    headline: str
    story: Story
    model: str
    about: tuple[Fact, ...]
    rows: tuple[Row, ...]
    around: tuple[tuple[Row, ...], ...]
    """Runs of rows around the first divergence and the root cause."""
    coverage: str
    exercised: tuple[str, ...]
    """What of the model the probe used, in a few sentences; empty where that is not known."""
    touched: tuple[TouchedRow, ...]
    tolerance: str
    decisions: str
    meaning: str
    """Drift in units of meaning, as a sentence; empty where none was measured."""
    effects: tuple[str, ...]
    """Predicted propagation and patching, a sentence each; empty where neither was asked for."""
    flips: tuple[FlipRow, ...]
    observer: tuple[str, ...]
    disturbed: tuple[str, ...]
    """The observer's sentences that are not reassuring."""
    sides: tuple[Pair, ...]
    timing: Timing
    environment: tuple[Fact, ...]
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str

    @property
    def said(self) -> tuple[str, ...]:
        """The sentences that terminal and Markdown show below the points, in order."""
        told = (self.tolerance, self.decisions, self.meaning, *self.effects, *self.disturbed)
        return tuple(text for text in told if text)


def look(report: Report) -> View:
    """Everything a report shows."""
    seen = report.observer.items()
    return View(
        verdict=report.verdict,
        symbol=RUN_SYMBOLS[report.verdict],
        headline=sentences.headline(report),
        story=tell(report, model_name(report.model)),
        model=model_name(report.model),
        about=_about(report),
        rows=(shown := to_rows(report)),
        around=around(shown),
        coverage=sentences.covered(report),
        exercised=exercised_sentences(report.coverage.exercised),
        touched=exercised_rows(report.coverage.exercised),
        tolerance=sentences.overall_tolerance(report),
        decisions=sentences.decision_impact(report),
        meaning=sentences.in_meaning(report),
        effects=tuple(_effects(report)),
        flips=tuple(_flips(report)),
        observer=tuple(sentences.observer_effect(side, one) for side, one in seen),
        disturbed=tuple(
            sentences.observer_effect(side, one)
            for side, one in seen
            if not (one.checked and one.bit_identical)
        ),
        sides=_sides(report),
        timing=timing(report),
        environment=tuple(report.environment.items()),
        notes=report.notes,
        command=report.command,
        created=report.created,
        tool=f"{report.tool.name} {report.tool.version}",
    )


def model_name(described: Mapping[str, str]) -> str:
    """What a reader calls the model."""
    named = next((described[key] for key in ("label", "name", "id") if described.get(key)), "")
    return named or next(iter(described.values()), "") or "a model"


def _about(report: Report) -> tuple[Fact, ...]:
    policy = report.policy
    rules = "; ".join(
        f"{rule.glob}: "
        + (
            "dtype table"
            if rule.atol is None
            else f"atol {number(rule.atol)}, rtol {number(rule.rtol or 0.0)}"
        )
        for rule in policy.rules
    )
    return (
        ("model", model_name(report.model)),
        (
            "reference",
            _side(report.reference),
        ),
        (
            "candidate",
            _side(report.candidate),
        ),
        ("policy", policy.name + (f" ({rules})" if rules else "")),
        ("probe", _probe(report.probe)),
    )


def _side(info: BackendInfo) -> str:
    extra = ", ".join(part for part in (info.device, _dtype(info)) if part)
    return f"{info.spec} ({extra})" if extra else info.spec


def _dtype(info: BackendInfo) -> str:
    """What a side computes in; of a mixture, where what."""
    return str(Mixture.of(info))


def _probe(probe: ProbeInfo) -> str:
    inputs = ", ".join(f"{name} {ints(i.shape)}" for name, i in probe.inputs.items())
    return " · ".join(part for part in (probe.origin, inputs, probe.sha256[:12]) if part)


def _effects(report: Report) -> Iterator[str]:
    if report.propagation is not None:
        yield propagation_sentence(report.propagation)
    if report.patching is not None:
        yield patching_sentence(report.patching)


def _flips(report: Report) -> Iterator[FlipRow]:
    tokens = report.probe.tokens
    for flip in report.outputs.examples if report.outputs else ():
        row, position = (*flip.index, -1, -1)[:2]
        known = 0 <= row < len(tokens) and 0 <= position < len(tokens[row])
        yield FlipRow(
            where=ints(flip.index),
            token=tokens[row][position] if known else "",
            reference=str(flip.reference),
            candidate=str(flip.candidate),
            gap=number(flip.gap),
            tie=flip.tie,
        )


def _sides(report: Report) -> tuple[Pair, ...]:
    """Both backends side by side; what only one of them has is no difference."""
    one, other = _flat(report.reference), _flat(report.candidate)
    keys = list(one) + [key for key in other if key not in one]
    return tuple(
        Pair(
            key,
            one.get(key, NOTHING),
            other.get(key, NOTHING),
            key in one and key in other and one[key] != other[key],
        )
        for key in keys
    )


def _flat(info: BackendInfo) -> dict[str, str]:
    basics = {"spec": info.spec, "device": info.device, "dtype": _dtype(info)}
    return basics | dict(info.versions) | {f"{key} (flag)": v for key, v in info.flags.items()}
