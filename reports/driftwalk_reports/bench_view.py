"""A benchmark in words: what every format of it shows, without markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from driftwalk.tasks.bench.result import BenchReport, Case, Entry
from driftwalk.tasks.bench.timing_stats import Ratio

from .numbers import NOTHING, count, cut, number, seconds
from .view import model_name

WORD_SYMBOLS = {"faster": "▲", "slower": "▼", "same": "=", "undecided": "?"}


@dataclass(frozen=True)
class BenchRow:
    """One backend in one case; places of its bar are in percent of the longest."""

    backend: str
    median: str
    spread: str
    tails: str
    runs: str
    tokens: str
    ratio: str
    interval: str
    word: str
    symbol: str
    cold: str
    copies: str
    memory: str
    noise: tuple[str, ...]
    at: float
    low: float
    high: float


@dataclass(frozen=True)
class LayerLine:
    point: str
    times: tuple[str, ...]
    shares: tuple[float, ...]
    """In percent of the longest of all."""


@dataclass(frozen=True)
class CaseView:
    title: str
    rows: tuple[BenchRow, ...]
    layers: tuple[LayerLine, ...]


@dataclass(frozen=True)
class BenchView:
    headline: str
    model: str
    how: str
    cases: tuple[CaseView, ...]
    notes: tuple[str, ...]
    command: str
    created: str
    tool: str
    environment: tuple[tuple[str, str], ...]


def look(report: BenchReport) -> BenchView:
    """Everything a benchmark shows."""
    unfinished = () if report.complete else ("Interrupted: these are the runs made until then.",)
    return BenchView(
        headline=headline(report),
        model=model_name(report.model),
        how=_how(report),
        cases=tuple(_case(case) for case in report.cases),
        notes=(*unfinished, *report.notes),
        command=report.command,
        created=report.created,
        tool=f"{report.tool.name} {report.tool.version}",
        environment=tuple(report.environment.items()),
    )


def headline(report: BenchReport) -> str:
    """One sentence: who is faster than the first, by how much, in how many cases."""
    told = report.ratios
    if not told:
        made = any(entry.bench.samples for case in report.cases for entry in case.entries)
        return "BENCH: one backend was timed." if made else "BENCH: no run was finished."
    first = cut(report.cases[0].entries[0].backend.spec, 60)
    clauses = [
        f"{cut(entry.backend.spec, 60)} is {_against(ratio, first)}{_where(report, case)}"
        for case, entry, ratio in told[:4]
    ]
    more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
    return f"BENCH: {'; '.join(clauses)}{more}."


def _against(ratio: Ratio, first: str) -> str:
    match ratio.word:
        case "faster":
            return f"{number(1 / ratio.value)} times as fast as {first}"
        case "slower":
            return f"{number(ratio.value)} times as slow as {first}"
        case "same":
            return f"as fast as {first}"
        case _:
            return f"not told apart from {first}"


def _where(report: BenchReport, case: Case) -> str:
    return f" at {_shape(case)}" if len(report.cases) > 1 else ""


def _shape(case: Case) -> str:
    return f"{case.batch} x {case.length}" if case.length else f"batch {case.batch}"


def _how(report: BenchReport) -> str:
    place = "each in a process of its own" if report.isolated else "all in one process"
    threads = {entry.threads for case in report.cases for entry in case.entries if entry.threads}
    said = f", {threads.pop()} threads each" if len(threads) == 1 else ""
    return f"plain runs, taking turns, {place}{said}"


def _case(case: Case) -> CaseView:
    longest = max((max(e.bench.samples) for e in case.entries if e.bench.samples), default=1.0)
    title = f"{_shape(case)}: {cut(case.inputs, 200)}, {count(case.tokens)} tokens"
    rows = tuple(_row(case, entry, longest or 1.0) for entry in case.entries)
    return CaseView(title, rows, tuple(_layers(case)))


def _row(case: Case, entry: Entry, longest: float) -> BenchRow:
    found, ratio = entry.summary, case.ratio(entry)
    rate = case.tokens_per_second(entry)
    bench = entry.bench
    tails = {"p90": found.p90, "p95": found.p95} if found else {}
    places = (found.median, found.q1, found.q3) if found else (0.0, 0.0, 0.0)
    at, low, high = (round(100 * value / longest, 2) for value in places)
    return BenchRow(
        backend=cut(entry.backend.spec, 60),
        median=seconds(found.median) if found else NOTHING,
        spread=f"{seconds(found.q1)} to {seconds(found.q3)}" if found else NOTHING,
        tails=", ".join(f"{k} {seconds(v)}" for k, v in tails.items() if v is not None),
        runs=str(found.runs) if found else "0",
        tokens=number(rate) if rate is not None else NOTHING,
        ratio=number(ratio.value) if ratio else "",
        interval=f"{number(ratio.low)} to {number(ratio.high)}" if ratio else "",
        word=ratio.word if ratio else "",
        symbol=WORD_SYMBOLS[ratio.word] if ratio else "",
        cold=", ".join(f"{k} {seconds(v)}" for k, v in bench.cold.items()),
        copies=f"in {seconds(bench.copy_in)}, out {seconds(bench.copy_out)}"
        if bench.copy_in or bench.copy_out
        else "",
        memory=", ".join(f"{name} {_bytes(value)}" for name, value in bench.memory.items()),
        noise=(*entry.noise, *entry.notes),
        at=at,
        low=low,
        high=high,
    )


def _bytes(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def _layers(case: Case) -> Iterator[LayerLine]:
    """Every point that some backend has a time for, in the order of the first that has any."""
    known: list[Mapping[str, float]] = [entry.bench.layers for entry in case.entries]
    points = list(dict.fromkeys(point for layers in known for point in layers))
    longest = max((value for layers in known for value in layers.values()), default=0.0) or 1.0
    for point in points:
        times = [layers.get(point) for layers in known]
        yield LayerLine(
            cut(point, 80),
            tuple(NOTHING if t is None else seconds(t) for t in times),
            tuple(round(100 * (t or 0.0) / longest, 1) for t in times),
        )
