"""The outcome of a benchmark: raw samples and who made them; all figures are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..adapter import BackendInfo
from ..jsonable import VERSION, decode, encode, to_text, versioned
from ..result import Benchmark, Tool
from .laps import Ratio, Summary, compare_laps, summarise

BENCH_SCHEMA_VERSION = 1
SLOWER_LATER = 1.15
"""A second half slower than the first by this factor looks like throttling."""


@dataclass(frozen=True)
class Entry:
    """One backend in one case."""

    backend: BackendInfo
    bench: Benchmark
    threads: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> Summary | None:
        return summarise(self.bench.samples) if self.bench.samples else None

    @property
    def noise(self) -> tuple[str, ...]:
        """What makes these timings doubtful, in words."""
        found = self.summary
        if found is None:
            return ("no run was finished",)
        said = []
        if found.noisy:
            said.append(f"the middle half of the runs spans {found.spread:.0%} of the median")
        half = found.runs // 2
        if half >= 4:
            first, second = (
                summarise(self.bench.samples[part]) for part in (slice(half), slice(half, None))
            )
            if second.median > SLOWER_LATER * first.median:
                factor = second.median / first.median
                said.append(f"the second half was {factor:.2f} times as slow: throttling?")
        return tuple(said)


@dataclass(frozen=True)
class Case:
    """One shape of input and every backend on it; the others are held against the first."""

    batch: int
    length: int | None
    inputs: str
    tokens: int
    """Positions that are not padding."""
    entries: tuple[Entry, ...]

    def ratio(self, entry: Entry) -> Ratio | None:
        """Against the first backend; None for the first itself."""
        first = self.entries[0]
        if entry is first or not first.bench.samples or not entry.bench.samples:
            return None
        return compare_laps(first.bench.samples, entry.bench.samples)

    def tokens_per_second(self, entry: Entry) -> float | None:
        found = entry.summary
        return self.tokens / found.median if found and found.median > 0 else None


@dataclass(frozen=True)
class BenchReport:
    """What `bench` returns."""

    tool: Tool
    created: str
    command: str
    model: Mapping[str, str]
    cases: tuple[Case, ...]
    isolated: bool
    """Whether each backend had a process of its own."""
    complete: bool = True
    """False where the benchmark was interrupted: the samples taken so far are here."""
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ratios(self) -> list[tuple[Case, Entry, Ratio]]:
        """Everything that was held against a first backend."""
        found = ((case, entry, case.ratio(entry)) for case in self.cases for entry in case.entries)
        return [(case, entry, ratio) for case, entry, ratio in found if ratio is not None]

    def slower(self, max_slowdown: float = 1.0) -> list[tuple[Case, Entry, Ratio]]:
        """Where the interval says that a backend is more than so many times as slow."""
        return [found for found in self.ratios if found[2].above(max_slowdown)]

    def undecided(self, max_slowdown: float = 1.0) -> list[tuple[Case, Entry, Ratio]]:
        """Where it may be, or may not."""
        return [found for found in self.ratios if found[2].above(max_slowdown) is None]


def to_dict(report: BenchReport) -> dict[str, Any]:
    """The JSON document: raw samples, and the figures they give, for readers without Python."""
    data: dict[str, Any] = {"bench_schema_version": BENCH_SCHEMA_VERSION} | encode(report)
    for case, plain in zip(report.cases, data["cases"], strict=True):
        for entry, told in zip(case.entries, plain["entries"], strict=True):
            told["summary"] = encode(entry.summary)
            told["ratio"] = encode(case.ratio(entry))
            told["tokens_per_second"] = encode(case.tokens_per_second(entry))
            told["noise"] = list(entry.noise)
    return data


def to_json(report: BenchReport) -> str:
    return to_text(to_dict(report))


def from_dict(data: Any) -> BenchReport:
    """Rebuild a report; the figures are computed again from the samples."""
    told = versioned(data, BENCH_SCHEMA_VERSION, "benchmark", f"bench_{VERSION}")
    return decode(BenchReport, told, "benchmark")
