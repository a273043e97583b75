"""The outcome of a benchmark: raw samples and who made them; all figures are computed from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...adapter import BackendInfo
from ...document import Document
from ...result import Benchmark
from ..constants import THROTTLED
from .timing_stats import Ratio, Summary, compare_laps, summarise


@dataclass(frozen=True)
class Entry:
    """One backend in one case."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"summary": "summary", "noise": "noise"}
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
        summary = self.summary
        if summary is None:
            return ("no run was finished",)
        said = []
        if summary.noisy:
            said.append(f"the middle half of the runs spans {summary.spread:.0%} of the median")
        half = summary.runs // 2
        if half >= 4:
            first, second = (
                summarise(self.bench.samples[part]) for part in (slice(half), slice(half, None))
            )
            if second.median > THROTTLED * first.median:
                factor = second.median / first.median
                said.append(f"the second half was {factor:.2f} times as slow: throttling?")
        return tuple(said)


@dataclass(frozen=True)
class Compared(Entry):
    """An entry and its figures, as JSON has it."""

    ratio: Ratio | None = None
    tokens_per_second: float | None = None


@dataclass(frozen=True)
class Case:
    """One shape of input and every backend on it; the others are compared with the first."""

    WRITTEN: ClassVar[Mapping[str, str]] = {"entries": "compared"}
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

    @property
    def compared(self) -> tuple[Compared, ...]:
        """The entries with the figures that only a case has, for readers without Python."""
        return tuple(
            Compared(
                e.backend, e.bench, e.threads, e.notes, self.ratio(e), self.tokens_per_second(e)
            )
            for e in self.entries
        )

    def tokens_per_second(self, entry: Entry) -> float | None:
        summary = entry.summary
        return self.tokens / summary.median if summary and summary.median > 0 else None


@dataclass(frozen=True, kw_only=True)
class BenchReport(Document):
    """What `bench` returns: raw samples, and the figures they give."""

    kind: ClassVar[str] = "bench"
    cases: tuple[Case, ...]
    isolated: bool
    """Whether each backend had a process of its own."""
    complete: bool = True
    """False where the benchmark was interrupted: the samples taken so far are here."""

    @property
    def ratios(self) -> list[tuple[Case, Entry, Ratio]]:
        """Everything that was compared with a first backend."""
        return [
            (case, entry, ratio)
            for case in self.cases
            for entry in case.entries
            if (ratio := case.ratio(entry)) is not None
        ]

    def slower(self, max_slowdown: float = 1.0) -> list[tuple[Case, Entry, Ratio]]:
        """Where the interval says that a backend is more than so many times as slow."""
        return [row for row in self.ratios if row[2].above(max_slowdown)]

    def undecided(self, max_slowdown: float = 1.0) -> list[tuple[Case, Entry, Ratio]]:
        """Where it may be, or may not."""
        return [row for row in self.ratios if row[2].above(max_slowdown) is None]
