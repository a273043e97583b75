"""A benchmark: what is shown of it, then how: on a terminal, as Markdown, as a page, and in
pytest-benchmark's own JSON, so that `pytest-benchmark compare` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.text import Text

from driftwalk.tasks.bench.result import BenchReport, Case, Entry
from driftwalk.tasks.bench.timing_stats import summarise

from . import console, marked
from .door import renderer
from .layout import Fact, Head, model_name
from .marked import Markdown
from .numbers import count, cut, number, seconds
from .page import page_renderer
from .timing import Bar, LayerTimes, against, bar, layer_times, longest_run

WORD_SYMBOLS = {"faster": "▲", "slower": "▼", "same": "=", "undecided": "?"}
_STYLES = {"faster": "green", "slower": "red", "same": "dim", "undecided": "yellow"}
_TITLES = ("backend", "median", "middle half", "tokens/s", "times the first", "")
PYTEST_FORMAT = "5.0.0"
"""The version of pytest-benchmark whose layout is written."""


@dataclass(frozen=True)
class BenchRow:
    """One backend in one case."""

    bar: Bar
    runs: str
    """How many, and their tails."""
    tokens: str
    ratio: str
    word: str
    verdict: str
    """The word with its symbol."""
    facts: tuple[Fact, ...]
    noise: tuple[str, ...]


@dataclass(frozen=True)
class CaseView:
    title: str
    rows: tuple[BenchRow, ...]
    layers: LayerTimes


@dataclass(frozen=True, kw_only=True)
class BenchView(Head[BenchReport]):
    cases: tuple[CaseView, ...]


def look(report: BenchReport) -> BenchView:
    """Everything a benchmark shows."""
    unfinished = () if report.complete else ("Interrupted: these are the runs made until then.",)
    return BenchView(
        document=report,
        tone="bench",
        headline=headline(report),
        about=(("model", model_name(report.model)), ("measured", _how(report))),
        cases=tuple(map(_case, report.cases)),
        notes=(*unfinished, *report.notes),
    )


def headline(report: BenchReport) -> str:
    """One sentence: who is faster than the first, by how much, in how many cases."""
    ratios = report.ratios
    if not ratios:
        made = any(entry.bench.samples for case in report.cases for entry in case.entries)
        return "BENCH: one backend was timed." if made else "BENCH: no run was finished."
    first = cut(report.cases[0].entries[0].backend.spec, 60)
    several = len(report.cases) > 1
    clauses = [
        f"{cut(entry.backend.spec, 60)} is {against(ratio, first)}"
        + (f" at {_shape(case)}" if several else "")
        for case, entry, ratio in ratios[:4]
    ]
    more = f"; and {len(ratios) - 4} more" if len(ratios) > 4 else ""
    return f"BENCH: {'; '.join(clauses)}{more}."


def _shape(case: Case) -> str:
    return f"{case.batch} x {case.length}" if case.length else f"batch {case.batch}"


def _how(report: BenchReport) -> str:
    place = "each in a process of its own" if report.isolated else "all in one process"
    threads = {entry.threads for case in report.cases for entry in case.entries if entry.threads}
    said = f", {threads.pop()} threads each" if len(threads) == 1 else ""
    return f"plain runs, taking turns, {place}{said}"


def _case(case: Case) -> CaseView:
    longest = longest_run(entry.bench.samples for entry in case.entries)
    return CaseView(
        f"{_shape(case)}{' (rows x length)' if case.length else ''}: {cut(case.inputs, 200)}, "
        f"{count(case.tokens)} tokens a run",
        tuple(_row(case, entry, longest) for entry in case.entries),
        layer_times(
            dict.fromkeys(point for entry in case.entries for point in entry.bench.layers),
            [(cut(entry.backend.spec, 60), entry.bench.layers) for entry in case.entries],
        ),
    )


def _row(case: Case, entry: Entry, longest: float) -> BenchRow:
    found, ratio, bench = entry.summary, case.ratio(entry), entry.bench
    tails = {"p90": found.p90, "p95": found.p95} if found else {}
    runs = [f"{found.runs if found else 0} runs"]
    runs += [f"{name} {seconds(value)}" for name, value in tails.items() if value is not None]
    copies = f"in {seconds(bench.copy_in)}, out {seconds(bench.copy_out)}"
    facts = (
        ("cold start", ", ".join(f"{k} {seconds(v)}" for k, v in bench.cold.items())),
        ("copies", copies if bench.copy_in or bench.copy_out else ""),
        ("peak memory", ", ".join(f"{k} {_bytes(v)}" for k, v in bench.memory.items())),
    )
    return BenchRow(
        bar=bar(cut(entry.backend.spec, 60), found, longest),
        runs=", ".join(runs),
        tokens=number(case.tokens_per_second(entry)),
        ratio=f"{number(ratio.value)} ({number(ratio.low)} to {number(ratio.high)})"
        if ratio
        else "",
        word=ratio.word if ratio else "",
        verdict=f"{WORD_SYMBOLS[ratio.word]} {ratio.word}" if ratio else "",
        facts=tuple((label, value) for label, value in facts if value),
        noise=(*entry.noise, *entry.notes),
    )


def _bytes(value: int) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def _parts(view: BenchView, _: Console) -> Iterator[RenderableType]:
    yield console.about(view.about)
    for case in view.cases:
        yield Text(f"\n{case.title}", style="bold")
        rows = [
            [*map(Text, _cells(row)), Text(row.verdict, style=_STYLES.get(row.word, ""))]
            for row in case.rows
        ]
        yield console.table(_TITLES, rows, " rrrrl")
        for row in case.rows:
            facts = [f"{label}: {value}" for label, value in row.facts]
            yield Text("; ".join([f"{row.bar.label}: {row.runs}", *facts]))
            yield from (Text(f"  noise: {noise}") for noise in row.noise)
    yield from console.noted(view.notes)


def _cells(row: BenchRow) -> tuple[str, ...]:
    return row.bar.label, row.bar.median, row.bar.spread, row.tokens, row.ratio


def _sections(view: BenchView) -> Iterator[Markdown]:
    (_, model), (_, how) = view.about
    yield Markdown("### driftwalk bench: {}").format(marked.code(model))
    yield Markdown("**{}**").format(marked.escaped(view.headline, 1500))
    yield marked.paragraph(how)
    for case in view.cases:
        yield marked.paragraph(case.title)
        cells = [(*_cells(row), row.verdict) for row in case.rows]
        rows = [
            (marked.code(name), median, spread, str(row.bar.runs), *more)
            for row, (name, median, spread, *more) in zip(case.rows, cells, strict=True)
        ]
        yield marked.table((*_TITLES[:3], "runs", *_TITLES[3:]), rows, " rrrrr")
    yield from marked.foot(view)


render = console.text_renderer(look, _parts)
render_markdown = marked.markdown_renderer(look, _sections)
render_page = page_renderer("bench.html.j2", look)


@renderer
def render_pytest(report: BenchReport) -> str:
    """One group per case, one benchmark per backend."""
    model = cut(model_name(report.model), 80)
    machine = report.environment.get("machine", "")
    document = {
        "machine_info": {
            "node": "driftwalk",
            "processor": machine,
            "machine": machine,
            "python_version": report.environment.get("python", ""),
            "system": report.environment.get("platform", ""),
            "cpu": {"brand_raw": report.environment.get("cpu", machine)},
        },
        "commit_info": {"id": "unknown", "dirty": False, "project": model, "branch": "unknown"},
        "benchmarks": [
            _benchmark(model, case, entry)
            for case in report.cases
            for entry in case.entries
            if entry.bench.samples
        ],
        "datetime": report.created,
        "version": PYTEST_FORMAT,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _benchmark(model: str, case: Case, entry: Entry) -> dict[str, Any]:
    shape = f"{case.batch}x{case.length}" if case.length else str(case.batch)
    spec = cut(entry.backend.spec, 80)
    name = f"{model}[{shape}-{spec}]"
    return {
        "group": f"{model} {shape}",
        "name": name,
        "fullname": f"driftwalk::{name}",
        "params": {"backend": spec, "batch": case.batch, "length": case.length},
        "param": f"{shape}-{spec}",
        "extra_info": {"tokens": case.tokens, "dtype": entry.backend.dtype},
        "options": {
            "disable_gc": False,
            "timer": "perf_counter",
            "min_rounds": len(entry.bench.samples),
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        },
        "stats": _stats(entry.bench.samples),
    }


def _stats(samples: Sequence[float]) -> dict[str, Any]:
    row, found = np.sort(np.asarray(samples, np.float64)), summarise(samples)
    mean = float(row.mean())
    deviation = float(row.std(ddof=1)) if len(row) > 1 else 0.0
    fence = 1.5 * (found.q3 - found.q1)
    inside = row[(row >= found.q1 - fence) & (row <= found.q3 + fence)]
    far = len(row) - len(inside)
    wide = int((np.abs(row - mean) > deviation).sum())
    return {
        "min": found.least,
        "max": float(row[-1]),
        "mean": mean,
        "stddev": deviation,
        "rounds": found.runs,
        "median": found.median,
        "iqr": found.q3 - found.q1,
        "q1": found.q1,
        "q3": found.q3,
        "iqr_outliers": far,
        "stddev_outliers": wide,
        "outliers": f"{wide};{far}",
        "ld15iqr": float(inside[0]),
        "hd15iqr": float(inside[-1]),
        "ops": 1 / mean if mean > 0 else 0.0,
        "total": float(row.sum()),
        "data": [float(value) for value in samples],
        "iterations": 1,
    }
