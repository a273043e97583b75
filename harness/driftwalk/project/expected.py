"""Expected drift: known deviations in a file, each with a bound, a reason and a last day.

The verdict of a report stays what was measured. What a file changes is the gate: drift that is
known, and no larger than was said, is `expected`, and every report says so. An entry that has
expired, or that nothing needs any more, fails: it would hide the next fault at its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Generic, Literal, TypeVar

from ..errors import nearest
from ..judge.gate import EXIT_CODES
from ..layer_drift import LayerDrift
from ..measure.metric_list import METRICS
from ..result import ExpectedDrift, Report, RunVerdict
from ..tasks.generation.result import Generation
from .toml_table import Table, read_toml

BOUNDED = tuple(metric.name for metric in METRICS if metric.bigger_is_worse)
"""Metrics that can be bounded from above; of the others, more is better."""

KEYS = ("point", "metric", "bound", "reason", "expires", "model", "candidate")

Judged = TypeVar("Judged", bound=Report | Generation)
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
class Gate(Generic[Judged]):
    """What a report means for a build, given what was expected."""

    report: Judged
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
    table.allow(KEYS, needed=KEYS[:5])
    metric = table.text("metric", "")
    if metric not in BOUNDED:
        table.refuse(f"no metric {metric!r} can be bounded. {nearest(metric, BOUNDED)}")
    bound = table.number("bound")
    if bound <= 0:
        table.refuse(f"'bound' should be more than 0, found {bound:g}.")
    return Known(
        point=table.text("point", ""),
        metric=metric,
        bound=bound,
        reason=table.text("reason", ""),
        expires=table.typed("expires", date, date.min),
        model=table.text("model", "*"),
        candidate=table.text("candidate", "*"),
        where=f"{table.file.name}: {table.where}",
    )


def today() -> date:
    """The same day on every machine."""
    return datetime.now(UTC).date()


def named(report: Report | Generation) -> tuple[str, str]:
    """What an entry's globs are matched with: the model, and the candidate."""
    return report.model.get("label", ""), report.candidate.spec


def judge(report: Judged, known: Sequence[Known], on: date | None = None) -> Gate[Judged]:
    """Compare a report with what is known of such runs."""
    spoken = [entry for entry in known if entry.speaks_of(*named(report))]
    if not spoken or report.verdict == "unverified":
        return Gate(report, report.verdict)
    day = on or today()
    late = tuple(expiry(entry) for entry in spoken if entry.expired(day))
    live = [entry for entry in spoken if not entry.expired(day)]
    # NaN, other shapes and lost points have no size that could be bounded.
    drifting = [x for x in report.layers if x.verdict == "drift" and x.metrics is not None]
    within: dict[str, Known] = {}
    expected = []
    for layer in drifting:
        fitting = (e for e in live if e.covers(layer) and e.found(layer) <= e.bound)
        if entry := next(fitting, None):
            within[layer.point.name] = entry
            size, expires = entry.found(layer), entry.expires.isoformat()
            limit = entry.metric, entry.bound
            expected.append(ExpectedDrift(layer.point.name, *limit, size, entry.reason, expires))
    stale = tuple(_stale(entry, report) for entry in live if not any(map(entry.covers, drifting)))
    notes = (*report.notes, *_notes(live, drifting, within), *late, *stale)
    said = replace(report, expected=tuple(expected), notes=notes)
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
        expiry(entry)
        if entry.expired(day)
        else f"{entry.where}: no run has a model {entry.model!r} and a candidate "
        f"{entry.candidate!r}; correct or remove the entry."
        for entry in lonely
        if whole or entry.expired(day)
    )


def expiry(entry: Known) -> str:
    """That an entry is no longer valid."""
    return (
        f"{entry.where}: the known deviation at {entry.point} expired on {entry.expires}: "
        f"{entry.reason.rstrip('. ')}. Repair it, or agree on a new day."
    )


def _notes(
    live: Iterable[Known], drifting: Sequence[LayerDrift], within: Mapping[str, Known]
) -> Iterator[str]:
    """Once for each entry: what it let pass, and the first place where more drifts than it says."""
    for entry in live:
        passed = [layer for layer in drifting if within.get(layer.point.name) is entry]
        if passed:
            names = ", ".join(layer.point.name for layer in passed[:6])
            more = f" and {len(passed) - 6} more" if len(passed) > 6 else ""
            largest = max(map(entry.found, passed))
            yield (
                f"Expected drift at {names}{more}: {entry.metric} up to {largest:.3g} where "
                f"{entry.bound:.3g} is known, until {entry.expires}: {entry.reason.rstrip('. ')}."
            )
        beyond = [x for x in drifting if entry.covers(x) and x.point.name not in within]
        if beyond:
            yield (
                f"More than the known drift at {beyond[0].point.name}: {entry.metric} "
                f"{entry.found(beyond[0]):.3g} where {entry.bound:.3g} is known ({entry.where})."
            )


def _stale(entry: Known, report: Report | Generation) -> str:
    names = [layer.point.name for layer in report.layers]
    if not any(fnmatchcase(name, entry.point) for name in names):
        return f"{entry.where}: {entry.point!r} matches no point. {nearest(entry.point, names)}"
    return (
        f"{entry.where}: nothing drifts at {entry.point} any more. Remove the entry, or name the "
        "model and the candidate that it speaks of."
    )
