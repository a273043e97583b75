"""How long things took: the phases of a run, and plain runs with their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftwalk.result import Benchmark, Report
from driftwalk.tasks.bench.timing_stats import Ratio, Summary, compare_laps, summarise

from .numbers import NOTHING, cut, number, seconds

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
    speed: str
    """Faster, slower, same or undecided, in a sentence; empty where nothing was timed."""
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


def against(ratio: Ratio, first: str) -> str:
    """How fast one is beside another, as far as the runs can tell."""
    match ratio.word:
        case "faster":
            return f"{number(1 / ratio.value)} times as fast as {first}"
        case "slower":
            return f"{number(ratio.value)} times as slow as {first}"
        case "same":
            return f"as fast as {first}"
        case _:
            return f"not told apart from {first}"


def _speed(report: Report, known: Mapping[str, Benchmark]) -> str:
    """What `--bench` found, with the word first; both sides took turns, so runs are pairs."""
    if known.keys() != {"reference", "candidate"}:
        return ""
    theirs, ours = known["reference"].samples, known["candidate"].samples
    ratio = compare_laps(theirs, ours)
    medians = [seconds(summarise(samples).median) for samples in (ours, theirs)]
    who, first = cut(report.candidate.spec, 60), cut(report.reference.spec, 60)
    text = (
        f"Speed: {ratio.word}. {who} is {against(ratio, first)}: {medians[0]} against {medians[1]} "
        f"(medians of {min(len(ours), len(theirs))} plain runs in turn)"
    )
    if math.isfinite(ratio.value):
        sure = f", surely {number(ratio.low)} to {number(ratio.high)}"
        text += f", {number(ratio.value)} times its time"
        text += sure if math.isfinite(ratio.high) else ""
    more = " `driftwalk bench` with more --rounds may tell." if ratio.word == "undecided" else ""
    return f"{text}.{more}"


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
        speed=_speed(report, known),
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
