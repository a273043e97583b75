"""What a verification shows, without markup: terminal, HTML, Markdown and JUnit draw from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from driftwalk.adapter import BackendInfo
from driftwalk.mixture import Mixture
from driftwalk.result import Report, RuleInfo

from . import sentences, tolerances
from .exercised import exercised_rows, exercised_sentences
from .format_costs import CostView, cost_view
from .format_words import limits
from .layout import Fact, Head, model_name
from .meter import Meter, meter
from .numbers import NOTHING, ints, number
from .probe_words import SetView, set_view
from .routing_words import routing_sentences
from .rows import Row, around, to_rows
from .story import Story, tell
from .studies.effects import patching_sentence, propagation_sentence
from .timing import Timing, timing
from .vocabulary import legend
from .weight_words import weights_sentence


@dataclass(frozen=True)
class SideBySide:
    """One thing that backends have, on both sides."""

    key: str
    reference: str
    candidate: str
    differs: bool


@dataclass(frozen=True, kw_only=True)
class View(Head[Report]):
    """A whole report, in words."""

    story: Story
    rows: tuple[Row, ...]
    meter: Meter
    """The scale of the bars of all rows."""
    legend: str
    """What the columns of the points measure, and the words for it."""
    coverage: str
    exercised: tuple[str, ...]
    """What of the model the probe used, in a few sentences; empty where that is not known."""
    touched: tuple[tuple[str, ...], ...]
    """The same, part by part: what, where, how much of it, and what to add to the probe."""
    tolerance: str
    decisions: str
    meaning: str
    """Drift in units of meaning, as a sentence; empty where none was measured."""
    effects: tuple[str, ...]
    """Predicted propagation and patching, a sentence each; empty where neither was asked for."""
    flips: tuple[tuple[str, ...], ...]
    """Where the top choice changed: position, token, both choices, the gap, what to make of it."""
    format: CostView | None
    """What a quantised candidate's format costs; None where it declares none."""
    routing: tuple[str, ...]
    """What became of the choices inside the model, a sentence each; empty where it makes none."""
    weights: str
    """What the weights of the root cause say beside the headline; empty where nothing."""
    observer: tuple[str, ...]
    disturbed: tuple[str, ...]
    """The observer's sentences that are not reassuring."""
    sides: tuple[SideBySide, ...]
    timing: Timing
    probes: SetView | None
    """What a set of probes came to; None where there was one probe."""

    @property
    def around(self) -> tuple[tuple[Row, ...], ...]:
        """Runs of rows around the first divergence and the root cause."""
        return around(self.rows)

    @property
    def said(self) -> tuple[str, ...]:
        """The sentences that terminal and Markdown show below the points, in order."""
        told = (
            self.weights,
            *self.routing,
            self.tolerance,
            self.decisions,
            self.meaning,
            *self.effects,
            self.timing.speed,
            *self.disturbed,
        )
        return tuple(text for text in told if text)


def look(report: Report) -> View:
    """Everything a report shows."""
    seen = {side: sentences.observer_effect(side, one) for side, one in report.observer.items()}
    rows = to_rows(report)
    return View(
        document=report,
        tone=report.verdict,
        headline=sentences.headline(report),
        about=_about(report),
        notes=report.notes,
        story=tell(report, model_name(report.model)),
        rows=rows,
        meter=meter(row.needed for row in rows),
        legend=legend(rows, declared=report.format is not None),
        coverage=sentences.covered(report),
        exercised=exercised_sentences(report.coverage.exercised),
        touched=exercised_rows(report.coverage.exercised),
        tolerance=tolerances.overall_tolerance(report),
        decisions=sentences.decision_impact(report),
        meaning=sentences.in_meaning(report),
        effects=tuple(_effects(report)),
        flips=tuple(_flips(report)),
        format=cost_view(report),
        routing=routing_sentences(report),
        weights=weights_sentence(report),
        observer=tuple(seen.values()),
        disturbed=tuple(
            seen[side]
            for side, one in report.observer.items()
            if not (one.checked and one.bit_identical)
        ),
        sides=tuple(_sides(report)),
        timing=timing(report),
        probes=set_view(report),
    )


def _about(report: Report) -> tuple[Fact, ...]:
    probe, rules = report.probe, "; ".join(map(_rule, report.policy.rules))
    arrays = [f"{name} {ints(i.shape)}" for name, i in probe.inputs.items()]
    inputs = ", ".join([*arrays, *(f"{name} {words}" for name, words in probe.others.items())])
    of_format = limits(report.policy)
    allowed = "; ".join(filter(None, (rules, f"format: {of_format}" if of_format else "")))
    return (
        ("model", model_name(report.model)),
        ("reference", _side(report.reference)),
        ("candidate", _side(report.candidate)),
        ("policy", report.policy.name + (f" ({allowed})" if allowed else "")),
        ("probe", " · ".join(filter(None, (probe.origin, inputs, probe.sha256[:12])))),
    )


def _rule(rule: RuleInfo) -> str:
    if rule.atol is None:
        return f"{rule.glob}: dtype table"
    return f"{rule.glob}: atol {number(rule.atol)}, rtol {number(rule.rtol or 0.0)}"


def _side(info: BackendInfo) -> str:
    extra = ", ".join(filter(None, (info.device, str(Mixture.of(info)))))
    return f"{info.spec} ({extra})" if extra else info.spec


def _effects(report: Report) -> Iterator[str]:
    if report.propagation is not None:
        yield propagation_sentence(report.propagation)
    if report.patching is not None:
        yield patching_sentence(report.patching)


def _flips(report: Report) -> Iterator[tuple[str, ...]]:
    tokens = report.probe.tokens
    for flip in report.outputs.examples if report.outputs else ():
        row, position = (*flip.index, -1, -1)[:2]
        known = 0 <= row < len(tokens) and 0 <= position < len(tokens[row])
        token = tokens[row][position] if known else ""
        meant = "≈ a tie" if flip.tie else "✗ a real change"
        choices = str(flip.reference), str(flip.candidate)
        yield ints(flip.index), token, *choices, number(flip.gap), meant


def _sides(report: Report) -> Iterator[SideBySide]:
    """Both backends side by side; what only one of them has is no difference."""
    one, other = _flat(report.reference), _flat(report.candidate)
    for key in one | other:
        differs = key in one and key in other and one[key] != other[key]
        yield SideBySide(key, one.get(key, NOTHING), other.get(key, NOTHING), differs)


def _flat(info: BackendInfo) -> dict[str, str]:
    basics = {"spec": info.spec, "device": info.device, "dtype": str(Mixture.of(info))}
    return basics | dict(info.versions) | {f"{key} (flag)": v for key, v in info.flags.items()}
