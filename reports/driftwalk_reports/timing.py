"""How long things took: the phases of a run, and plain runs with their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftwalk.result import Report
from driftwalk.tasks.bench.timing_stats import Summary, summarise

from .numbers import NOTHING, cut, seconds

PHASES = {
    "load": "load the model",
    "points": "find its points",
    "export": "export it",
    "compile": "compile it",
    "match": "find the states of its graph",
    "trace": "run it, every state captured",
    "run": "run it plainly, to compare outputs",
}
"""What each phase of a verification does."""
CALIBRATION = "calibration"
"""The side whose phases are dtypes."""
SIDES = {CALIBRATION: "truth and yardstick"}


@dataclass(frozen=True)
class Bar:
    """One backend's plain runs; places are in percent of the longest."""

    label: str
    median: str
    spread: str
    runs: int
    at: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerTimes:
    """Seconds in the block of each point, by side."""

    sides: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    """The point, and for each side the time and its percentage of the longest of all."""


@dataclass(frozen=True)
class Timing:
    phases: tuple[tuple[str, ...], ...]
    """What was done, and how long each side took for it."""
    sides: tuple[str, ...]
    """Whose times they are."""
    bars: tuple[Bar, ...]
    layers: LayerTimes


def bar(label: str, found: Summary | None, longest: float) -> Bar:
    """The bar of one backend; empty where it finished no run."""
    if found is None:
        return Bar(label, NOTHING, NOTHING, 0, 0.0, 0.0, 0.0)
    places = (round(100 * value / longest, 2) for value in (found.median, found.q1, found.q3))
    spread = f"{seconds(found.q1)} to {seconds(found.q3)}"
    return Bar(label, seconds(found.median), spread, found.runs, *places)


def longest_run(samples: Iterable[Sequence[float]]) -> float:
    return max((max(one) for one in samples if one), default=0.0) or 1.0


def layer_times(
    points: Iterable[str], known: Sequence[tuple[str, Mapping[str, float]]]
) -> LayerTimes:
    """Those of the points that some side has a time for."""
    sides, layers = [side for side, _ in known], [times for _, times in known]
    longest = longest_run([tuple(times.values()) for times in layers])
    return LayerTimes(
        tuple(sides),
        tuple(
            (cut(point, 80), tuple(_time(times.get(point), longest) for times in layers))
            for point in points
            if any(point in times for times in layers)
        ),
    )


def _time(value: float | None, longest: float) -> tuple[str, float]:
    if value is None:
        return NOTHING, 0.0
    return seconds(value), round(100 * value / longest, 1)


def timing(report: Report) -> Timing:
    """The phases of a verification, and what was timed beside it."""
    known = {
        side: bench
        for side, bench in report.benchmarks.items()
        if bench.samples and all(0 <= value < math.inf for value in bench.samples)
    }
    longest = longest_run(bench.samples for bench in known.values())
    specs = {"reference": report.reference.spec, "candidate": report.candidate.spec}
    sides = report.timings.values()
    return Timing(
        phases=tuple(
            (
                _phase(report, phase),
                *(seconds(spent[phase]) if phase in spent else NOTHING for spent in sides),
            )
            for phase in dict.fromkeys(phase for spent in sides for phase in spent)
        ),
        sides=tuple(SIDES.get(side, cut(side, 40)) for side in report.timings),
        bars=tuple(
            bar(cut(f"{side} {specs.get(side, '')}".strip(), 60), summarise(one.samples), longest)
            for side, one in known.items()
        ),
        layers=layer_times(
            [layer.point.name for layer in report.layers],
            [(cut(side, 40), one.layers) for side, one in known.items() if one.layers],
        ),
    )


def _phase(report: Report, phase: str) -> str:
    if phase in report.timings.get(CALIBRATION, {}):
        return f"compute both in {cut(phase, 40)}"
    return PHASES.get(phase, cut(phase, 40))
