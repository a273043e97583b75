"""Expected drift: known deviations in a file, each with a bound, a reason and a last day.

The verdict of a report stays what was measured. What a file changes is the gate: drift that is
known, and no larger than was said, is `expected`, and every report says so. An entry that has
expired, or that nothing needs any more, fails: it would hide the next fault at its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from ..errors import nearest
from ..judge.gate import EXIT_CODES
from ..layer_drift import LayerDrift
from ..measure.metric_list import METRICS
from ..result import ExpectedDrift, Report, RunVerdict
from .toml_table import Table, read_toml

BOUNDED = tuple(metric.name for metric in METRICS if metric.bigger_is_worse)
"""Metrics that can be bounded from above; of the others, more is better."""

KEYS = ("point", "metric", "bound", "reason", "expires", "model", "candidate")

GateVerdict = RunVerdict | Literal["expected"]


@dataclass(frozen=True)
class Known:
    """One known deviation, and which runs it speaks of."""

    point: str
    metric: str
    bound: float
    reason: str
    expires: date
    model: str = "*"
    candidate: str = "*"
    where: str = ""
    """The file and the entry, as a reader finds it."""

    def speaks_of(self, model: str, candidate: str) -> bool:
        return fnmatchcase(model, self.model) and fnmatchcase(candidate, self.candidate)

    def covers(self, layer: LayerDrift) -> bool:
        return fnmatchcase(layer.point.name, self.point)

    def found(self, layer: LayerDrift) -> float:
        """How large it is; where only bounds are known, at most. NaN is within no bound."""
        value = float(getattr(layer.metrics, self.metric))
        bounds = layer.bounds
        if bounds is None or bounds.exact:
            return value
        if self.metric == "max_abs":
            return bounds.max_abs_high
        if self.metric not in ("rel_l2", "rmse"):
            return math.nan
        # The metrics of a point that drifts hold the lower bound, which proves that it does.
        return value * bounds.l2_high / bounds.l2_low if bounds.l2_low > 0 else math.inf

    def expired(self, today: date) -> bool:
        """The last day still counts."""
        return today > self.expires


@dataclass(frozen=True)
class Gate:
    """What a report means for a build, given what was expected."""

    report: Report
    """With what was expected in it; its own verdict is untouched."""
    verdict: GateVerdict
    failures: tuple[str, ...] = ()
    """Entries that fail by themselves, a sentence each."""

    @property
    def ok(self) -> bool:
        return self.verdict in ("pass", "expected") and not self.failures

    @property
    def exit_code(self) -> int:
        if self.verdict == "expected" or (self.verdict == "pass" and self.failures):
            return 1 if self.failures else 0
        return EXIT_CODES[self.verdict]


def load_expected(path: str | Path) -> tuple[Known, ...]:
    """The known deviations of a file; one that says too little is refused."""
    file = Path(path)
    top = Table(read_toml(file), file).allow(("expected",))
    return tuple(_known(table) for table in top.tables("expected"))


def _known(table: Table) -> Known:
    table.allow(KEYS).require("point", "metric", "bound", "reason", "expires")
    metric = table.text("metric") or ""
    if metric not in BOUNDED:
        table.refuse(f"no metric {metric!r} can be bounded. {nearest(metric, BOUNDED)}")
    bound = table.number("bound")
    if bound <= 0:
        table.refuse(f"'bound' should be more than 0, found {bound:g}.")
    return Known(
        point=table.text("point") or "",
        metric=metric,
        bound=bound,
        reason=table.text("reason") or "",
        expires=table.day("expires"),
        model=table.text("model", "*") or "*",
        candidate=table.text("candidate", "*") or "*",
        where=f"{table.file.name}: {table.where}",
    )


def today() -> date:
    """The same day on every machine."""
    return datetime.now(UTC).date()


def named(report: Report) -> tuple[str, str]:
    """What an entry's globs are held against: the model, and the candidate."""
    return report.model.get("label", ""), report.candidate.spec


def judge(report: Report, known: Sequence[Known], on: date | None = None) -> Gate:
    """Hold a report against what is known of such runs."""
    spoken = [entry for entry in known if entry.speaks_of(*named(report))]
    if not spoken or report.verdict == "unverified":
        return Gate(report, report.verdict)
    day = on or today()
    late = tuple(expiry(entry) for entry in spoken if entry.expired(day))
    live = [entry for entry in spoken if not entry.expired(day)]
    # NaN, other shapes and lost points have no size that could be bounded.
    drifting = [x for x in report.layers if x.verdict == "drift" and x.metrics is not None]
    matches = [(layer, _match(layer, live)) for layer in drifting]
    expected = {layer.point.name: entry for layer, entry in matches if entry}
    notes = [*_notes(live, matches), *_beyond(live, drifting, expected)]
    stale = tuple(_stale(entry, report) for entry in live if not any(map(entry.covers, drifting)))
    told = tuple(
        ExpectedDrift(
            layer.point.name,
            entry.metric,
            entry.bound,
            entry.found(layer),
            entry.reason,
            entry.expires.isoformat(),
        )
        for layer, entry in matches
        if entry
    )
    said = replace(report, expected=told, notes=(*report.notes, *notes, *late, *stale))
    return Gate(said, "expected" if said.as_expected else said.verdict, (*late, *stale))


def unmet(
    known: Iterable[Known], seen: Iterable[tuple[str, str]], whole: bool, on: date | None = None
) -> tuple[str, ...]:
    """What fails of the entries that speak of none of the runs seen, a sentence each.

    An expired entry fails wherever its file is used. That nothing fits an entry is a mistake only
    where all was run that could fit it: the `whole`.
    """
    runs, day = tuple(seen), on or today()
    lonely = [entry for entry in known if not any(entry.speaks_of(*run) for run in runs)]
    return tuple(
        expiry(entry) if entry.expired(day) else _nowhere(entry)
        for entry in lonely
        if whole or entry.expired(day)
    )


def _nowhere(entry: Known) -> str:
    return (
        f"{entry.where}: no run has a model {entry.model!r} and a candidate {entry.candidate!r}; "
        "correct or remove the entry."
    )


def expiry(entry: Known) -> str:
    """That an entry is no longer valid."""
    return (
        f"{entry.where}: the known deviation at {entry.point} expired on {entry.expires}: "
        f"{entry.reason.rstrip('. ')}. Repair it, or agree on a new day."
    )


def _match(layer: LayerDrift, live: Sequence[Known]) -> Known | None:
    fitting = (entry for entry in live if entry.covers(layer) and entry.found(layer) <= entry.bound)
    return next(fitting, None)


def _notes(
    live: Sequence[Known], matches: Sequence[tuple[LayerDrift, Known | None]]
) -> Iterable[str]:
    """Once for each entry: what it let pass."""
    for entry in live:
        layers = [layer for layer, match in matches if match is entry]
        if not layers:
            continue
        names = ", ".join(layer.point.name for layer in layers[:6])
        more = f" and {len(layers) - 6} more" if len(layers) > 6 else ""
        largest = max(entry.found(layer) for layer in layers)
        yield (
            f"Expected drift at {names}{more}: {entry.metric} up to {largest:.3g} where "
            f"{entry.bound:.3g} is known, until {entry.expires}: {entry.reason.rstrip('. ')}."
        )


def _beyond(
    live: Sequence[Known], drifting: Sequence[LayerDrift], expected: Iterable[str]
) -> Iterable[str]:
    """Once for each entry: the first place where the drift is larger than it says."""
    within = set(expected)
    for entry in live:
        for layer in drifting:
            if entry.covers(layer) and layer.point.name not in within:
                yield (
                    f"More than the known drift at {layer.point.name}: {entry.metric} "
                    f"{entry.found(layer):.3g} where {entry.bound:.3g} is known ({entry.where})."
                )
                break


def _stale(entry: Known, report: Report) -> str:
    names = [layer.point.name for layer in report.layers]
    if not any(fnmatchcase(name, entry.point) for name in names):
        return f"{entry.where}: {entry.point!r} matches no point. {nearest(entry.point, names)}"
    return (
        f"{entry.where}: nothing drifts at {entry.point} any more. Remove the entry, or name the "
        "model and the candidate that it speaks of."
    )
