"""Reports as files: names that every system takes, links that lead somewhere, all or nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from driftwalk import registry
from driftwalk.errors import UsageError
from driftwalk.publish import folder_names, publish
from driftwalk.result import Report, load
from unit.reports import cases

FILES = ["junit.xml", "layers.csv", "report.html", "result.json", "summary.md"]


def on(spec: str, model: str = "tiny", probe: str = "0") -> Report:
    report = cases.passing()
    return dataclasses.replace(
        report,
        model={"label": model},
        candidate=dataclasses.replace(report.candidate, spec=spec),
        probe=dataclasses.replace(report.probe, sha256=probe),
    )


def below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_one_report_fills_the_folder(tmp_path: Path) -> None:
    written = publish([cases.drifting()], tmp_path / "a" / "b")
    assert below(tmp_path / "a" / "b") == FILES
    assert sorted(path.name for path in written) == FILES
    assert load(tmp_path / "a" / "b" / "result.json").verdict == "drift"


def test_save_writes_what_is_asked_for(tmp_path: Path) -> None:
    assert cases.passing().save(tmp_path / "all") == tmp_path / "all"
    assert below(tmp_path / "all") == FILES
    assert cases.passing().save(str(tmp_path / "some"), ["md", "csv"]) == tmp_path / "some"
    assert below(tmp_path / "some") == ["layers.csv", "summary.md"]


def test_several_get_a_folder_each_and_an_index(tmp_path: Path) -> None:
    written = publish([on("onnxruntime"), on("torch:cpu:fp16")], tmp_path)
    folders = ["01-onnxruntime", "02-torch-cpu-fp16"]
    assert below(tmp_path) == sorted(
        [*(f"{folder}/{file}" for folder in folders for file in FILES), "index.html"]
    )
    assert written[-1] == tmp_path / "index.html", "last: it links to what is there"
    assert "index.html" not in below_without_html(tmp_path)


def below_without_html(folder: Path) -> list[str]:
    publish([on("a"), on("b")], folder / "plain", ["csv"])
    return below(folder / "plain")


def test_the_index_and_the_pages_know_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each is given: links that lead to a page, and the reports behind them."""
    seen: dict[str, Any] = {}

    def page(report: Report, others: Sequence[tuple[str, Report]] = ()) -> str:
        seen[report.candidate.spec] = [(href, other.candidate.spec) for href, other in others]
        return "page"

    def index(entries: Sequence[tuple[str, Report]]) -> str:
        seen["index"] = [(href, report.candidate.spec) for href, report in entries]
        return "index"

    monkeypatch.setattr("driftwalk_reports.html.render", page)
    targets = {registry.REPORT_INDEX[1]: index}
    real = registry.load_target
    monkeypatch.setattr("driftwalk.publish.load_target", lambda t: targets.get(t) or real(t))
    publish([on("a b%20/é"), on("c"), on("d", probe="1"), on("e", model="other")], tmp_path)
    assert [spec for _, spec in seen["index"]] == ["a b%20/é", "c", "d", "e"]
    for href, _ in seen["index"]:
        assert quote(href) == href
        assert (tmp_path / unquote(href)).read_text() == "page"
    assert [spec for _, spec in seen["c"]] == ["a b%20/é"]
    for href, _ in seen["c"]:
        home = tmp_path / unquote(seen["index"][1][0])
        assert (home.parent / unquote(href)).is_file()
    assert seen["d"] == seen["e"] == [], "another probe or model is another question"


@pytest.mark.parametrize(
    "text",
    [
        "../../etc/passwd",
        "..",
        "",
        "/",
        "C:\\x",
        'a<b>c:d"e|f?g*h',
        "CON",
        "x" * 5000,
        "é" * 300,
        ".hidden",
        "end. ",
        "\x00\n",
        "-rf",
        "a%2fb",
    ],
)
def test_names_of_folders_are_safe(text: str, tmp_path: Path) -> None:
    reports = [on(text, model=text), on(text, model="other")]
    names = folder_names(reports)
    assert len(set(names)) == 2
    for name in names:
        assert re.fullmatch(r"0\d(-[A-Za-z0-9_-][A-Za-z0-9._-]*)?", name), name
        assert len(name) <= 110
        assert not name.endswith((".", "-", " "))
        assert ".." not in name
    publish(reports, tmp_path, ["csv"])
    assert below(tmp_path) == sorted(f"{name}/layers.csv" for name in names)


def test_names_say_the_model_where_there_are_several() -> None:
    assert folder_names([on("a"), on("b")]) == ["01-a", "02-b"]
    assert folder_names([on("a"), on("a", model="org/m")]) == ["01-tiny-a", "02-org-m-a"]
    assert folder_names([on("a")] * 100)[0] == "001-a", "sorted by name is sorted by number"


def test_unknown_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'htm'.*Did you mean 'html'.*json, html, md, junit, csv"):
        publish([cases.passing()], tmp_path / "out", ["htm"])
    with pytest.raises(UsageError, match="No report format"):
        publish([cases.passing()], tmp_path / "out", [])
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_where_one_text_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(report: Report) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("driftwalk_reports.table.render", fail)
    with pytest.raises(ZeroDivisionError):
        publish([cases.passing()], tmp_path / "out")
    assert not (tmp_path / "out").exists()
