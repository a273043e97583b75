"""How long things took: the phases of the run, and benchmarks with their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from driftwalk.result import Benchmark, Report
from driftwalk.tasks.bench.timing_stats import summarise

from .numbers import NOTHING, cut, seconds


@dataclass(frozen=True)
class Phases:
    """How long each side took, by phase."""

    sides: tuple[str, ...]
    phases: tuple[tuple[str, tuple[str, ...]], ...]


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
class LayerTime:
    """Seconds in one point's block, by side."""

    point: str
    times: tuple[str, ...]


@dataclass(frozen=True)
class Timing:
    phases: Phases
    bars: tuple[Bar, ...]
    sides: tuple[str, ...]
    layers: tuple[LayerTime, ...]


def timing(report: Report) -> Timing:
    known = {side: bench for side, bench in report.benchmarks.items() if _real(bench.samples)}
    sides = tuple(side for side, bench in known.items() if bench.layers)
    points = [layer.point.name for layer in report.layers]
    return Timing(
        _phases(report.timings),
        tuple(_bars(report, known)),
        tuple(cut(side, 40) for side in sides),
        tuple(
            LayerTime(
                cut(point, 80), tuple(_known(known[side].layers.get(point)) for side in sides)
            )
            for point in points
            if any(point in known[side].layers for side in sides)
        ),
    )


def _known(value: float | None) -> str:
    return NOTHING if value is None else seconds(value)


def _real(samples: tuple[float, ...]) -> bool:
    return bool(samples) and all(0 <= value < math.inf for value in samples)


def _phases(timings: Mapping[str, Mapping[str, float]]) -> Phases:
    phases = list(dict.fromkeys(phase for spent in timings.values() for phase in spent))
    return Phases(
        sides=tuple(timings),
        phases=tuple(
            (
                phase,
                tuple(
                    seconds(spent[phase]) if phase in spent else NOTHING
                    for spent in timings.values()
                ),
            )
            for phase in phases
        ),
    )


def _bars(report: Report, known: Mapping[str, Benchmark]) -> list[Bar]:
    longest = max((max(bench.samples) for bench in known.values()), default=0.0) or 1.0
    specs = {"reference": report.reference.spec, "candidate": report.candidate.spec}
    bars = []
    for side, bench in known.items():
        found = summarise(bench.samples)
        bars.append(
            Bar(
                cut(f"{side} {specs.get(side, '')}".strip(), 60),
                seconds(found.median),
                f"{seconds(found.q1)} to {seconds(found.q3)}",
                found.runs,
                *(round(100 * value / longest, 2) for value in (found.median, found.q1, found.q3)),
            )
        )
    return bars
