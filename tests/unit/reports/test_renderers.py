"""Terminal, HTML, Markdown and JUnit: the same sentence, and names that cannot break out."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from rich.text import Text

from driftwalk.result import Report
from driftwalk_reports import heatmap, html, junit, markdown, sentences, terminal
from unit.reports import cases

RENDERERS: dict[str, Callable[[Report], str]] = {
    "terminal": terminal.render,
    "html": html.render,
    "markdown": markdown.render,
    "junit": junit.render,
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


# Terminal


def test_the_last_line_is_the_sentence(report: Report) -> None:
    for width in (40, 80, 200):
        last = terminal.render(report, width=width).splitlines()[-1]
        assert last[2:] == sentences.headline(report)
        assert last[0] in "✓✗?"


def test_the_terminal_marks_first_divergence_and_root_cause() -> None:
    lines = terminal.render(cases.blamed()).splitlines()
    (first,) = [x for x in lines if x.endswith("<--- first divergence")]
    (root,) = [x for x in lines if x.endswith("<--- root cause")]
    assert first.split()[0] == "layer.3"
    assert "✗ drift" in first
    assert root.split()[0] == "layer.1"
    assert "<---" not in terminal.render(cases.passing())


def test_the_terminal_shows_the_rows_around_in_full() -> None:
    text = terminal.render(cases.drifting())
    for label in ("module", "shape", "max rel", "cosine", "SNR", "ULP", "worst at", "would pass"):
        assert re.search(rf"^ {label}  ", text, re.MULTILINE), label
    assert "transformer.layer.3" in text


def test_the_sparkline_rises_where_the_drift_is() -> None:
    (line,) = [x for x in terminal.render(cases.drifting()).splitlines() if "log scale" in x]
    bars = line.split()[0]
    assert len(bars) == 9
    assert max(bars[:4]) < min(bars[4:])


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_nothing_but_the_sentence_is_wider_than_asked(width: int) -> None:
    for case in (cases.drifting, cases.nonfinite, cases.hostile):
        lines = terminal.render(case(), width=width).splitlines()
        assert max(Text(line).cell_len for line in lines[:-1]) <= width


def test_colour_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, coloured = (terminal.render(cases.drifting(), color=color) for color in (False, True))
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    shown = Text.from_ansi(coloured).plain.splitlines()
    assert [line.rstrip() for line in shown] == plain.splitlines()
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "50"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert terminal.render(cases.drifting()) == plain, "the environment changes nothing"
    assert terminal.render(cases.drifting(), color=True) == coloured


def test_a_narrow_table_drops_columns_before_it_cuts_the_verdict() -> None:
    text = terminal.render(cases.drifting(), width=56)
    (line,) = [x for x in text.splitlines() if x.startswith(" layer.3")]
    assert line.endswith("✗ drift  <--- first divergence")
    assert "max abs" in terminal.render(cases.drifting(), width=100).split("verdict")[0]
    assert "max abs" not in text.split("verdict")[0]


def test_markup_in_a_name_is_shown_not_obeyed() -> None:
    text = terminal.render(cases.hostile(), width=400, color=True)
    assert "[bold red]" in text
    assert "\\x1b[31m" in text
    assert "\x1b[31m\\x00" not in text


# HTML


class _Page(HTMLParser):
    """Collects what a browser would load, run or link to, and the text it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.ids += [value or ""] if name == "id" else []
            self.links += [value or ""] if name in ("src", "href", "action", "data") else []
            self.handlers += [name] if name.startswith("on") else []

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_loads_nothing_from_elsewhere(report: Report) -> None:
    page = _Page(text := html.render(report))
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert "://" not in text.replace(report.command, "")
    assert "@import" not in text
    assert "url(" not in text
    assert not page.handlers
    assert not {"img", "iframe", "object", "embed"} & set(page.tags)
    assert page.tags.count("script") == 1


def test_hostile_names_are_shown_literally_on_the_page() -> None:
    text = html.render(cases.hostile())
    page = _Page(text)
    shown = "</script><img src=x onerror=alert(1)>|`*_[bold red]\\x1b[31m\\x00"
    assert shown in page.text
    assert "<img" not in text
    for name in cases.NAMES:
        assert f"{name}{shown}" in page.text


def test_every_point_can_be_linked_to(report: Report) -> None:
    page = _Page(html.render(report))
    assert len(page.ids) == len(set(page.ids))
    if report.layers[:1] and report.layers[0].point.name == "embed":
        assert {layer.point.name for layer in report.layers} <= set(page.ids)
        assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_the_page_opens_at_what_matters() -> None:
    text = html.render(cases.drifting())
    opened = re.findall(r'<details id="([^"]*)"[^>]* open>', text)
    assert opened == ["layer.3"]
    assert re.findall(r"<details[^>]* open>", html.render(cases.passing())) == []


def test_the_curve_has_a_mark_per_point_and_a_hole_where_nothing_was_measured() -> None:
    text = html.render(cases.missing())
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    marks = svg.findall("a")
    assert len(marks) == 2 * 9
    assert len(svg.findall("a/circle")) == 2 * 7
    assert [t.text for t in svg.findall("a/text")] == ["∅"] * 4
    lines = [line.attrib["points"].split() for line in svg.findall("polyline")]
    assert [len(line) for line in lines] == [5, 2, 5, 2]


def test_the_heatmap_has_a_field_per_token_that_counts() -> None:
    text = html.render(cases.drifting())
    svg = text[text.index('<svg class="heat"') : text.rindex("</svg>") + 6]
    fields = ET.fromstring(svg).findall("rect")
    assert len(fields) == 9 * 6, "two of the eight positions are padding"
    hottest = [f.findtext("title", "") for f in fields if f.attrib["fill"] == "var(--h8)"]
    assert hottest
    assert all(title.startswith("logits, row 0, token ") for title in hottest)


def test_the_fields_of_a_point_add_up_to_its_relative_error() -> None:
    """Whatever the size of a state: the mean square over its tokens is rel_l2 squared."""
    report = cases.drifting()
    (drawn,) = heatmap.heatmaps(report)
    for line, layer in zip(drawn.lines, report.layers, strict=True):
        values = [float(cell.title.rsplit(" ", 1)[1]) for cell in line.cells]
        mean_square = sum(value * value for value in values) / len(values)
        assert layer.metrics is not None
        assert mean_square**0.5 == pytest.approx(layer.metrics.rel_l2, rel=0.01)


def test_a_deep_report_is_drawn_in_bins() -> None:
    text = html.render(cases.deep())
    assert len(re.findall(r'<rect x="[^"]*" y="[^"]*" width', text)) <= 48 * 64
    assert "largest of its bin" in text
    assert "largest of its bin" not in html.render(cases.drifting())


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
    assert set(widths) <= {4, 5, 7}, "no pipe of a name may split a cell"


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
