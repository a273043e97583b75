"""What all formats share: the same sentence, and names that cannot break out."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest

from driftwalk.result import Report
from driftwalk_reports import html, junit, markdown, sentences, table, terminal
from unit.reports import cases

RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "html": html.render,
    "markdown": markdown.render,
    "junit": junit.render,
    "csv": table.render,
}
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(params=list(RENDERERS))
def render(request: pytest.FixtureRequest) -> Callable[[Report], str]:
    return RENDERERS[request.param]


def test_every_report_renders_without_control_characters(
    report: Report, render: Callable[[Report], str]
) -> None:
    text = render(report)
    assert not UNSAFE.search(text)
    assert text == render(report), "rendering twice gives the same text"


def test_all_say_the_same_sentence() -> None:
    report = cases.drifting()
    sentence = sentences.headline(report)
    for name in ("terminal", "html", "markdown", "junit"):
        assert sentence in RENDERERS[name](report), name


# Markdown


def test_markdown_fits_a_comment(report: Report) -> None:
    assert len(markdown.render(report).encode()) < 64_000


def test_markdown_is_cut_where_names_are_endless() -> None:
    name = "|" * 5000
    reference = {f"layer.{i}{name}": a for i, a in enumerate(cases.states().values())}
    report = cases.make(
        reference, reference, model=name, command=name, notes=(name,) * 500, modules="{}"
    )
    text = markdown.render(report)
    assert len(text.encode()) < 64_000
    assert text.rstrip().endswith("report.html has everything.*")


def test_markdown_names_the_first_divergence_before_the_table() -> None:
    text = markdown.render(cases.drifting())
    assert text.index("first divergence at layer.3") < text.index("| `embed` |")
    assert "| `layer.3` | 0.00327 |" in text
    assert "✗ drift ⟵ **first divergence** |" in text


def test_markdown_escapes_what_would_be_markup() -> None:
    text = markdown.render(cases.hostile())
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert not re.search(r"(?<!\\)`\\\*", text)
    assert "@team" not in text, "a mention would notify people"
    heads = [line for line in text.splitlines() if line.startswith("| ")]
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in heads]
    assert set(widths) <= {4, 5, 7, 8}, "no pipe of a name may split a cell"


# JUnit


def _suite(report: Report) -> ET.Element:
    suite = ET.fromstring(junit.render(report).encode()).find("testsuite")
    assert suite is not None
    return suite


def test_junit_counts_what_it_lists(report: Report) -> None:
    suite = _suite(report)
    cases_ = suite.findall("testcase")
    assert suite.attrib["tests"] == str(len(cases_))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.attrib[name] == str(len(suite.findall(f"testcase/{tag}"))), name
    red = suite.attrib["failures"] != "0" or suite.attrib["errors"] != "0"
    assert red == (not report.ok)


def test_junit_fails_the_points_that_drift() -> None:
    suite = _suite(cases.drifting())
    failed = [c.attrib["name"] for c in suite.findall("testcase") if c.find("failure") is not None]
    assert failed == ["layer.3", "layer.4", "layer.5", "norm", "logits"]
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"].startswith("layer.3: max abs 0.05 where ")
    assert sentences.headline(cases.drifting()) in (failure.text or "")


def test_junit_calls_an_unverified_run_an_error_and_an_allowed_gap_a_skip() -> None:
    error = _suite(cases.nothing()).find("testcase/error")
    assert error is not None
    assert error.attrib["message"] == "UNVERIFIED: no point was compared."
    suite = _suite(cases.missing_allowed())
    assert [
        c.attrib["name"] for c in suite.findall("testcase") if c.find("skipped") is not None
    ] == ["embed"]


def test_junit_keeps_hostile_names_readable() -> None:
    names = [case.attrib["name"] for case in _suite(cases.hostile()).findall("testcase")]
    assert names[0].startswith("embed</script><img src=x onerror=alert(1)>|`*_[bold red]\\x1b[31m")
