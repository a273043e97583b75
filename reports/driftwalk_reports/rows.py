"""One row per point: what a table shows of it, and everything known of it by label."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from driftwalk.formats import FormatCost
from driftwalk.layer_drift import Blame, LayerDrift, TruthErrors
from driftwalk.measure.metric_list import METRICS
from driftwalk.result import Report

from . import sentences, tolerances
from .format_words import decibels
from .layout import Fact
from .numbers import NOTHING, apart, cosine, count, ints, number, part_of, share, used
from .point_words import module_beside

SYMBOLS = {"ok": "✓", "drift": "✗", "nonfinite": "!", "shape": "≠", "missing": "∅", "extra": "+"}
SYMBOLS["unknown"] = "?"
FIRST, ROOT = "first divergence", "root cause"

CLOSE_CALLS = 5
"""Points within tolerance that a short table still shows, the closest first."""

_WRITTEN: dict[str, Callable[[float], str]] = {
    "number": number,
    "cosine": cosine,
    "dB": lambda value: f"{number(value)} dB",
}


@dataclass(frozen=True)
class Leading:
    """One of the numbers that matter most at a point."""

    label: str
    value: str
    more: str
    """What makes sense of it, in a few words; may be empty."""
    shows: tuple[str, ...]
    """The labels of the facts that are in it."""


@dataclass(frozen=True)
class Row:
    """One point, ready to be shown."""

    name: str
    index: int
    verdict: str
    symbol: str
    ok: bool
    allowed: bool
    marks: tuple[str, ...]
    rel_l2: str
    max_abs: str
    from_truth: str
    """How far the side that used most of its allowance is from the truth; empty without one."""
    allowance: str
    used: str
    sentence: str
    leading: tuple[Leading, ...]
    """The three numbers that matter: the share of the allowance, the distance, the worst place."""
    facts: tuple[Fact, ...]
    """Everything known of it, by label."""
    error: float | None
    """Relative L2, for curves; None where it was not measured or is not the whole story."""
    largest: float | None
    """Largest absolute difference, likewise."""
    needed: float | None
    """Share of the allowance used, likewise."""
    meaning: str
    """Drift as a share of a contrast; empty where none was measured."""
    module: str
    """Where the name does not tell which module the point is; else empty."""

    @property
    def other_facts(self) -> tuple[Fact, ...]:
        """The facts that its leading numbers do not show."""
        shown = {label for one in self.leading for label in one.shows}
        return tuple(fact for fact in self.facts if fact[0] not in shown)

    def beside(self, label: str) -> str:
        """A label of this point, with its module where that must be said."""
        return f"{label} ({self.module})" if self.module else label


@dataclass(frozen=True)
class Gap:
    """Rows left out of a short table."""

    count: int


def to_rows(report: Report) -> tuple[Row, ...]:
    """Every point of a report, in words."""
    marked = ((FIRST, report.first_divergence), (ROOT, report.root_cause))
    points = [(mark, layer.point) for mark, layer in marked if layer is not None]
    shares = report.contrast.shares if report.contrast else None
    return tuple(
        to_row(
            layer,
            tuple(mark for mark, point in points if point == layer.point),
            part_of(shares.get(layer.point.name)) if shares is not None else "",
            report.format.layers.get(layer.point.name) if report.format is not None else None,
        )
        for layer in report.layers
    )


def to_row(
    layer: LayerDrift,
    marks: tuple[str, ...] = (),
    meaning: str = "",
    cost: FormatCost | None = None,
) -> Row:
    """One point in words; `cost` is that of the candidate's format there."""
    metrics = layer.metrics if layer.verdict != "nonfinite" else None
    tolerance = layer.tolerance if metrics else None
    bad = layer.metrics.nonfinite.candidate if layer.metrics else 0
    bound = sentences.bound(layer)
    return Row(
        name=layer.point.name,
        index=layer.index,
        verdict=layer.verdict,
        symbol=SYMBOLS[layer.verdict],
        ok=layer.ok,
        allowed=layer.allowed,
        marks=marks,
        rel_l2=bound + number(metrics.rel_l2) if metrics else NOTHING,
        max_abs=(
            bound + number(metrics.max_abs) if metrics else f"{bad} NaN/Inf" if bad else NOTHING
        ),
        from_truth=_relative(layer) if metrics else "",
        allowance=tolerances.allowance(layer.tolerance),
        used=bound + used(tolerance.needed) if tolerance else NOTHING,
        sentence=sentences.what_happened(layer),
        leading=tuple(_leading(layer, bound)),
        facts=tuple(_facts(layer, cost)),
        error=metrics.rel_l2 if metrics else None,
        largest=metrics.max_abs if metrics else None,
        needed=tolerance.needed if tolerance else None,
        meaning=meaning,
        module=module_beside(layer),
    )


def _leading(layer: LayerDrift, bound: str) -> Iterator[Leading]:
    metrics, tolerance = layer.metrics, layer.tolerance
    if metrics is None:
        return
    bad = metrics.nonfinite
    if layer.verdict == "nonfinite":
        parts = (("candidate", bad.candidate), ("reference", bad.reference))
        for side, found in parts:
            total = f"of {count(metrics.total)} elements"
            yield Leading(f"NaN or Inf in the {side}", count(found), total, ("not finite",))
    elif tolerance is not None:
        norm = sentences.in_norm(tolerance)
        yield Leading("allowance used", bound + used(tolerance.needed), norm, ("used",))
        distance = "between both sides, relative to the state"
        yield Leading("rel L2", bound + number(metrics.rel_l2), distance, ("rel L2",))
    worst = metrics.worst
    if worst is not None and max(bad.reference, bad.candidate) < max(metrics.total, 1):
        reference, candidate = apart(worst.reference, worst.candidate, 6)
        there = f"at {ints(worst.index)}: {reference} in the reference, {candidate} here"
        shows = ("max abs", "worst at", "reference there", "candidate there")
        yield Leading("largest difference", bound + number(metrics.max_abs), there, shows)


def _relative(layer: LayerDrift) -> str:
    """The L2 distance from the truth of the side that `used` speaks of, relative to the state."""
    truth, tolerance = layer.truth, layer.tolerance
    if truth is None or tolerance is None:
        return ""
    error = truth.reference if tolerance.side == "reference" else truth.candidate
    return number(error / truth.scale) if truth.scale > 0 else number(error)


def _facts(layer: LayerDrift, cost: FormatCost | None) -> Iterator[Fact]:
    """Everything known of one point, by label."""
    tolerance, dtypes = layer.tolerance, layer.dtypes
    if layer.point.module:
        yield "module", layer.point.module
    if layer.point.found:
        yield "found by", layer.point.found
    yield "shape", ints(layer.shape)
    yield "dtypes", f"{dtypes.reference or NOTHING} | {dtypes.candidate or NOTHING}"
    yield from _measured(layer)
    if tolerance is not None:
        yield "allowance", tolerances.allowance(tolerance)
        if layer.verdict != "nonfinite":
            yield "used", sentences.share_used(tolerance.needed)
        if layer.verdict != "ok":
            yield "would pass", tolerances.would_pass(layer)
    if layer.truth is not None:
        yield "L2 from the truth", _from_truth(layer.truth, cost)
    if cost is not None:
        yield "format", f"{number(cost.relative_format)} (SNR {decibels(cost.snr_db)})"
        yield "kernel", f"{number(cost.relative_kernel)} beside the format"
    if layer.blame is not None:
        yield "blame", _blamed(layer.blame)
    if layer.note:
        yield "note", layer.note


def _from_truth(truth: TruthErrors, cost: FormatCost | None) -> str:
    if cost is not None:
        sides = f"reference {number(truth.reference)}, candidate {number(cost.total)}"
        return f"{sides} (its format {number(cost.format)}); the state has {number(truth.scale)}"
    sides = ", ".join(
        f"{n} {number(getattr(truth, n))}" for n in ("reference", "candidate", "yardstick")
    )
    closer = "neither is closer" if truth.closer == "tie" else f"the {truth.closer} is closer"
    return f"{sides}; {closer}; the state itself has {number(truth.scale)}"


def _blamed(blame: Blame) -> str:
    """What of a layer's error is its own, in words."""
    own, taken = number(blame.introduced), number(blame.inherited)
    doing = "made by this layer" if blame.guilty else "no more than honest arithmetic makes"
    return f"{own} of the error is its own, {doing}; {taken} came in with its input"


def _measured(layer: LayerDrift) -> Iterator[Fact]:
    metrics = layer.metrics
    if metrics is None:
        return
    bad = metrics.nonfinite
    if bad.reference or bad.candidate:
        both = f"{count(bad.reference)} in the reference, {count(bad.candidate)} in the candidate"
        yield "not finite", f"{both} (and in no other number here)"
    # Where nothing is finite on both sides, sums over nothing would look perfect.
    if max(bad.reference, bad.candidate) < max(metrics.total, 1):
        for metric in METRICS:
            if metric.written != "ULP":
                yield metric.label, _WRITTEN[metric.written](getattr(metrics, metric.name))
        if not math.isnan(metrics.ulp_max):
            yield "ULP", f"{number(metrics.ulp_max)} max, {number(metrics.ulp_p99)} p99"
    part = metrics.mismatched / metrics.total if metrics.total else 0.0
    yield "mismatched", f"{count(metrics.mismatched)} of {count(metrics.total)} ({share(part)})"
    if metrics.worst is not None:
        reference, candidate = apart(metrics.worst.reference, metrics.worst.candidate, 6)
        yield "worst at", ints(metrics.worst.index)
        yield "reference there", reference
        yield "candidate there", candidate
        room = sentences.allowance_at_worst(layer)
        if room is not None:
            yield "allowed there", number(room)


def short(rows: Sequence[Row], most: int) -> list[Row | Gap]:
    """About `most` rows: the ends, what is near a mark, failing ones, close calls; gaps counted."""
    last = len(rows) - 1
    wanted = set(range(len(rows))) if len(rows) <= most else {0, last}
    for position, row in enumerate(rows):
        if row.marks:
            wanted |= set(range(max(0, position - 3), min(last, position + 3) + 1))
    failing = [i for i, row in enumerate(rows) if not row.ok]
    closest = sorted(range(len(rows)), key=lambda i: -(rows[i].needed or 0))[:CLOSE_CALLS]
    for position in failing + closest:
        if len(wanted) >= most:
            break
        wanted.add(position)
    shown: list[Row | Gap] = []
    previous = -1
    for position in sorted(wanted):
        if position - previous > 1:
            shown.append(Gap(position - previous - 1))
        shown.append(rows[position])
        previous = position
    return shown


def around(rows: Sequence[Row]) -> tuple[tuple[Row, ...], ...]:
    """The marked rows with their neighbours, as runs of rows that follow one another."""
    marked = [position for position, row in enumerate(rows) if row.marks]
    near = {p for m in marked for p in (m - 1, m, m + 1) if 0 <= p < len(rows)}
    runs: list[list[Row]] = []
    for position in sorted(near):
        if position - 1 not in near:
            runs.append([])
        runs[-1].append(rows[position])
    return tuple(tuple(run) for run in runs)


def labels(rows: Sequence[Row]) -> list[str]:
    """The labels of all facts of a few rows, each after the one it follows in its own row."""
    merged: list[str] = []
    for row in rows:
        after = 0
        for label, _ in row.facts:
            if label not in merged:
                merged.insert(after, label)
            after = merged.index(label) + 1
    return merged
