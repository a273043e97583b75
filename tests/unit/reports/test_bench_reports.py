"""A benchmark in words: the sentence, the table, the page; and names that cannot break out."""

from __future__ import annotations

import dataclasses

import pytest

from bench.test_bench import report
from driftwalk.result import Benchmark
from driftwalk.tasks.bench.result import BenchReport
from driftwalk_reports import bench, html, markdown, terminal
from unit.reports.cases import passing

STEADY = [0.01 + 0.00001 * (i % 3) for i in range(24)]


def scaled(factor: float) -> list[float]:
    return [factor * value for value in STEADY]


@pytest.mark.parametrize(
    ("factor", "sentence"),
    [
        (0.5, "b1 is 2 times as fast as b0"),
        (1.5, "b1 is 1.5 times as slow as b0"),
        (1.0, "b1 is as fast as b0"),
    ],
)
def test_the_sentence(factor: float, sentence: str) -> None:
    assert bench.headline(report(STEADY, scaled(factor))) == f"BENCH: {sentence}."


def test_what_is_not_known_is_not_said() -> None:
    few = report(STEADY[:3], scaled(9)[:3])
    assert bench.headline(few) == "BENCH: b1 is not told apart from b0."
    assert bench.headline(report(STEADY)) == "BENCH: one backend was timed."
    assert bench.headline(report([])) == "BENCH: no run was finished."
    assert "p95" not in bench.render(report(STEADY))
    assert "p90" in bench.render(report(STEADY))


def test_the_last_line_of_the_terminal_is_the_sentence() -> None:
    found = report(STEADY, scaled(0.5))
    lines = bench.render(found).rstrip().splitlines()
    assert lines[-1] == bench.headline(found)
    assert any("▲ faster" in line and "10 ms" not in line for line in lines)


def test_an_interrupted_benchmark_says_so() -> None:
    found = dataclasses.replace(report(STEADY, STEADY), complete=False)
    for text in (bench.render(found), bench.render_markdown(found)):
        assert "Interrupted" in text
    assert "Interrupted" in bench.render_page(found)


def hostile() -> BenchReport:
    found = report(STEADY, STEADY)
    name = "</script><img src=x onerror=alert(1)>|`*"
    return dataclasses.replace(found, model={"label": name}, notes=(name,), command=name)


def test_hostile_names_stay_text() -> None:
    page = bench.render_page(hostile())
    assert "<img" not in page
    assert "&lt;img src=x" in page
    markdown = bench.render_markdown(hostile())
    assert "<img" not in markdown


def test_bars_are_in_percent_of_the_longest_run() -> None:
    view = bench.look(report([1.0] * 9 + [2.0], [0.5] * 10))
    first, second = view.cases[0].rows
    assert (first.bar.at, second.bar.at) == (50.0, 25.0)
    assert first.bar.low <= first.bar.at <= first.bar.high


@pytest.mark.parametrize(
    ("factor", "runs", "words"),
    [
        (0.5, 24, "Speed: faster. onnxruntime is 2 times as fast as torch: 5"),
        (1.5, 24, "Speed: slower. onnxruntime is 1.5 times as slow as torch: 15"),
        (1.0, 24, "Speed: same. onnxruntime is as fast as torch: 10"),
        (9.0, 3, "Speed: undecided. onnxruntime is not told apart from torch: 90"),
    ],
)
def test_a_verification_that_was_timed_says_so_everywhere(
    factor: float, runs: int, words: str
) -> None:
    sides = {"reference": STEADY, "candidate": scaled(factor)}
    timed = {side: Benchmark(samples=tuple(row[:runs])) for side, row in sides.items()}
    report = dataclasses.replace(passing(), benchmarks=timed)
    for text in (terminal.render(report), markdown.render(report), html.render(report)):
        assert words in " ".join(text.split())
    assert "Speed:" not in terminal.render(passing())
