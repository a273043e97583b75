"""`driftwalk report`: stored results in, files out; from files, folders and printed lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.program import REPORT_FILES, invoke
from driftwalk.result import Report, to_dict, to_json
from unit.reports import cases


def store(path: Path, *reports: Report) -> Path:
    """One report as a result.json; several as `verify --json` prints them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    several = json.dumps([to_dict(report) for report in reports])
    path.write_text(to_json(reports[0]) if len(reports) == 1 else several, "utf-8")
    return path


def below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def result(here: Path) -> Path:
    return store(here / "result.json", cases.drifting())


def test_all_formats_of_one_result(here: Path, result: Path) -> None:
    done = invoke("report", str(result), "-o", "out")
    assert (done.code, done.out) == (0, ""), "drift is no failure of rendering it"
    assert below(here / "out") == list(REPORT_FILES)
    assert f"Report: {Path('out') / 'report.html'}" in done.err.splitlines()


@pytest.mark.parametrize(
    ("formats", "files"),
    [
        ("html", ["report.html"]),
        ("csv,md", ["layers.csv", "summary.md"]),
        (" junit , csv,", ["junit.xml", "layers.csv"]),
        ("html,md,junit,csv", ["junit.xml", "layers.csv", "report.html", "summary.md"]),
        ("json,json", ["result.json"]),
    ],
)
def test_some_formats(here: Path, result: Path, formats: str, files: list[str]) -> None:
    done = invoke("report", str(result), "-o", "out", "--format", formats)
    assert done.code == 0, done.err
    assert below(here / "out") == files
    assert files[0] in done.err or "report.html" in done.err


def test_into_the_folder_it_came_from(here: Path, result: Path) -> None:
    before = result.read_bytes()
    assert invoke("report", ".", "-o", ".").code == 0
    assert below(here) == list(REPORT_FILES)
    assert result.read_bytes() == before
    assert invoke("report", "result.json", "-o", ".", "--format", "csv").code == 0


def test_several_results_get_an_index(here: Path) -> None:
    one = store(here / "a.json", cases.passing())
    two = store(here / "b.json", cases.drifting())
    done = invoke("report", str(one), str(two), "-o", "out")
    assert done.code == 0, done.err
    assert (here / "out" / "01-onnxruntime" / "report.html").is_file()
    assert (here / "out" / "02-onnxruntime" / "report.html").is_file()
    assert f"Index: {Path('out') / 'index.html'}" == done.err.splitlines()[-1]


def verdicts(folder: Path) -> list[str]:
    found = sorted(folder.glob("*/result.json"))
    return [json.loads(path.read_text("utf-8"))["verdict"] for path in found]


def test_a_folder_of_folders_in_order(here: Path) -> None:
    kinds = {f"{number:02d}-x": number % 3 == 0 for number in range(12)}
    for name in sorted(kinds, key=lambda name: name[::-1], reverse=True):
        report = cases.drifting() if kinds[name] else cases.passing()
        store(here / "in" / name / "result.json", report)
    store(here / "in" / "99-y" / "deeper" / "result.json", cases.nothing())
    (here / "in" / "notes.txt").write_text("not a folder")
    assert invoke("report", "in", "-o", "out", "--format", "json").code == 0
    assert verdicts(here / "out") == ["drift" if drifts else "pass" for drifts in kinds.values()]


def test_what_verify_prints_for_several_candidates(here: Path) -> None:
    store(here / "printed.json", cases.drifting(), cases.passing())
    assert invoke("report", "printed.json", "-o", "out").code == 0
    assert verdicts(here / "out") == ["drift", "pass"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json", "-o", "out"], ["nowhere.json", "No such file"]),
        (["empty", "-o", "out"], ["No result.json in 'empty'", "--report"]),
        (["text.txt", "-o", "out"], ["'text.txt' is not JSON"]),
        (["list.json", "-o", "out"], ["Not a driftwalk result"]),
        (["mixed.json", "-o", "out"], ["Not a driftwalk result"]),
        (["result.json", "text.txt", "-o", "out"], ["'text.txt' is not JSON"]),
        (["result.json", "-o", "out", "--format", "pdf"], ["'pdf'", "json, html, md, junit, csv"]),
        (["result.json", "-o", "out", "--format", "HTML"], ["'HTML'"]),
        (["result.json", "-o", "out", "--format", ""], ["No report format", "Known: json"]),
        (["result.json", "-o", "out", "--format", ", ,"], ["No report format"]),
        (["result.json", "-o", "text.txt"], ["Cannot write", "text.txt"]),
        (["result.json"], ["--output"]),
        (["-o", "out"], ["RESULT"]),
    ],
    ids=lambda value: " ".join(value) if "-o" in value else "",
)
def test_what_cannot_be_rendered_is_2(
    here: Path, result: Path, arguments: list[str], words: list[str]
) -> None:
    (here / "empty").mkdir()
    (here / "text.txt").write_text("some words")
    (here / "list.json").write_text("[]")
    mixed: list[Any] = [to_dict(cases.passing()), 5]
    (here / "mixed.json").write_text(json.dumps(mixed))
    invoke("report", *arguments).refused(2, *words)
    assert not (here / "out").exists()
