"""What a format costs, in every report: never only that all agrees, never the kernel's fault."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from xml.etree import ElementTree as ET

import pytest

from driftwalk.formats import FormatCost, FormatFindings, Misstored
from driftwalk.result import Report
from driftwalk_reports import failing_test, html, index, junit, markdown, story, table, terminal
from driftwalk_reports.format_chart import CostDrawing, cost_chart
from driftwalk_reports.format_costs import HEAD, as_sentence, cost_view, few
from driftwalk_reports.format_words import costs
from driftwalk_reports.rows import Gap
from driftwalk_reports.view import look
from unit.reports import cases


def found(report: Report) -> FormatFindings:
    assert report.format is not None
    return report.format


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_the_headline_of_a_pass_says_what_agrees_with_what_and_what_it_costs() -> None:
    said = look(cases.quantised()).headline
    assert said.startswith("PASS: the kernel computes what the format declares at all 9 points")
    assert said.endswith(
        "The format costs 0.08 of logits (rel L2; SNR 21.9 dB), KL divergence 0.0123, and flips "
        "1 of 6 top choices."
    )
    assert "points agree" in look(cases.passing()).headline, "what is not quantised says as before"


def test_a_format_beyond_its_limit_is_called_so_and_the_kernel_right() -> None:
    report = cases.costly()
    said = look(report).headline
    assert said.startswith("DRIFT: the format, not the kernel, costs more than is allowed: KL")
    assert "The kernel computes what the format declares at all 9 points" in said
    told = story.tell(dataclasses.replace(report, finer_depth="module"), "tiny")
    words = "".join(part.text for part in told.sentence)
    assert "the format of onnxruntime costs more than is allowed" in words
    answers = {tile.question: "".join(p.text for p in tile.answer) for tile in told.tiles}
    assert answers["Where it comes from"].startswith("The format, not the kernel: KL")
    assert all("Look inside" not in step.text for step in told.steps)
    line = failing_test.summary_line(report, "drift", ())
    assert "the format, not the kernel" in line
    assert "its format costs too much" in index.render([("a.html", report)])


def test_drift_of_the_kernel_leads_and_the_format_comes_second() -> None:
    report = cases.misstored()
    both = dataclasses.replace(
        report,
        reason="the format is dear",
        format=dataclasses.replace(found(report), exceeded=("x",)),
    )
    said = look(both).headline
    assert said.startswith("DRIFT: first divergence at layer.3")
    assert said.endswith("Beside it, the format is dear.")


def test_nobody_is_closer_to_a_truth_that_is_his_own() -> None:
    report = cases.told(cases.quantised())
    questions = [tile.question for tile in story.tell(report, "tiny").tiles]
    assert "What the format costs" in questions
    assert "Who is closer to the truth?" not in questions
    facts = dict(look(report).rows[3].facts)
    assert "closer" not in facts["L2 from the truth"]
    assert facts["format"] == "0.05 (SNR 26 dB)"
    assert "its format declares" in look(report).legend
    plainly = cases.told(cases.passing())
    assert "Who is closer to the truth?" in [t.question for t in story.tell(plainly, "t").tiles]


def test_terminal_and_markdown_have_the_section() -> None:
    report = cases.quantised()
    for text in map(plain, (terminal.render(report), markdown.render(report).replace("\\_", "_"))):
        assert "What the format costs" in text
        assert "Alone, it flips 1 of 6 top choices; top-5 overlap 90 %" in text
        assert "The kernel adds 1e-07 at logits." in text
        assert "grows most at logits (by 0.0608), layer.2 (by 0.049), layer.3 (by 0.0143)" in text
        assert "Left in float: lm_head." in text
        assert "in a way of their own, and taken as they are stored: h.0.mlp, h.1.mlp." in text
        for word in ("int4", "32 numbers of a row", "not rounded", "27.8 kB", "14.1 %", "26 dB"):
            assert word in text, word
    assert "What the format costs" not in terminal.render(cases.passing())


@pytest.mark.parametrize("width", [40, 62, 80, 100, 200])
def test_a_terminal_of_any_width_shows_all_columns(width: int) -> None:
    text = terminal.render(cases.quantised(), width=width)
    section = text[text.index("What the format costs") :]
    assert max(map(len, section.splitlines()[:-1])) <= width
    line = next(line for line in section.splitlines() if line.startswith(" logits"))
    assert all(value in line for value in ("0.08", "21.9 dB", "1e-07"))
    assert "0.0608 (1)" in line or width < 62
    assert "█" in section or width < 80


def test_weights_that_could_not_be_read_leave_no_empty_table() -> None:
    report = cases.quantised()
    unread = dataclasses.replace(report, format=dataclasses.replace(found(report), stored=()))
    for text in (terminal.render(unread), markdown.render(unread), html.render(unread)):
        assert "How its weights are stored could not be read." in plain(text)
        assert "stored as" not in text.replace("stored as it", "")


def test_misstored_weights_are_told_in_full() -> None:
    report = cases.misstored()
    assert "h.3.mlp does not hold the model's weights, rounded" in look(report).headline
    tiles = {tile.question: tile for tile in story.tell(cases.told(report), "tiny").tiles}
    assert "h.3.mlp does not hold" in tiles["Where it comes from"].more
    many = {f"h.{i}": Misstored(f"h.{i} is wrong", 2.0) for i in range(5)}
    several = dataclasses.replace(report, format=dataclasses.replace(found(report), wrong=many))
    assert (
        "h.1 is wrong (up to 2 times what it may be off). So are 3 more." in look(several).headline
    )
    for text in (terminal.render(report), html.render(report), junit.render(report)):
        assert "12.5 times what it may be off" in plain(text)


def test_the_points_that_add_most_stay_in_a_short_table() -> None:
    view = cost_view(cases.deep())
    assert view is not None
    shown = few(view.rows, 10)
    assert sum(isinstance(row, Gap) for row in shown) >= 1
    assert sum(row.count if isinstance(row, Gap) else 1 for row in shown) == len(view.rows)
    names = [row.name for row in shown if not isinstance(row, Gap)]
    assert len(names) == 10
    assert names[-1] == view.rows[-1].name
    assert few(view.rows[:10], 10) == list(view.rows[:10])
    short = cost_view(cases.quantised())
    assert short is not None
    kept = [row.name for row in few(short.rows, 3) if not isinstance(row, Gap)]
    assert kept == ["layer.2", "layer.3", "logits"]


def test_a_row_has_a_cell_for_each_title() -> None:
    view = cost_view(cases.quantised())
    assert view is not None
    assert {len(row.cells) for row in view.rows} == {len(HEAD)}
    assert as_sentence(view.stored[1]) == (
        "3 weights as int4, one step for 32 numbers of a row, inputs not rounded (49,408 numbers, "
        "27.8 kB, 14.1 % of float32)."
    )


def test_what_costs_nothing_and_what_could_not_be_told() -> None:
    report = cases.quantised()
    free = dataclasses.replace(
        found(report), layers={"logits": FormatCost(0.0, 1e-6, 0.0, 1.0)}, decisions=None
    )
    assert costs(dataclasses.replace(report, format=free)) == "the format costs nothing at logits"
    empty = dataclasses.replace(report, format=dataclasses.replace(free, layers={}))
    assert "could not be told" in terminal.render(empty)
    assert cost_chart(empty) is None
    assert "page-format" in html.render(empty)


def drawn(report: Report) -> CostDrawing:
    chart = cost_chart(report)
    assert chart is not None
    return chart.drawings[0]


def height(path: str) -> float:
    """Of a bar."""
    match = re.search(r"v(-?[\d.]+)", path)
    return abs(float(match[1])) if match else 0.0


def test_bars_are_as_long_as_their_decades_above_and_below() -> None:
    drawing = drawn(cases.quantised())
    last = drawing.bars[-1]  # 0.08 below, 1e-7 above; the scale begins at 1e-7 or below
    first, ticks = drawing.bars[0], {t.label for t in drawing.ticks}
    decade = (height(last.below) - height(first.below)) / math.log10(0.08 / 0.01)
    low = math.log10(0.08) - height(last.below) / decade
    assert math.isclose(low, round(low), abs_tol=0.05), "from a whole decade"
    assert f"{10.0 ** round(low):g}" in ticks
    assert height(last.above) == pytest.approx((-7 - low) * decade, abs=0.6)
    assert [bar.rank for bar in drawing.bars if bar.rank] == [2, 3, 1]
    assert height(last.added) == pytest.approx(84.0)
    assert drawing.bars[3].added
    assert not drawing.bars[1].added, "layer.0 adds nothing"


def test_a_layer_that_drifts_has_a_sign_and_not_only_a_colour() -> None:
    drawing = drawn(cases.misstored())
    names = [hit.column.name for hit in drawing.hits]
    failed = {layer.point.name for layer in cases.misstored().layers if not layer.ok}
    assert {n for n, bar in zip(names, drawing.bars, strict=True) if bar.symbol} == failed
    assert drawing.limit is None


def test_the_limit_is_drawn_where_the_outputs_must_end() -> None:
    drawing = drawn(cases.costly())
    assert drawing.limit is not None
    assert drawing.limit.label == "the outputs' limit: 30 dB"
    last = drawing.bars[-1]
    assert drawing.limit.at < drawing.below + height(last.below), "logits are beyond it"


@pytest.mark.parametrize("size", [math.nan, math.inf, 0.0])
def test_what_is_no_size_is_drawn_too(size: float) -> None:
    report = cases.quantised()
    layers = dict(found(report).layers) | {"layer.1": FormatCost(size, size, 0.0, 3.0)}
    broken = dataclasses.replace(report, format=dataclasses.replace(found(report), layers=layers))
    drawing = drawn(broken)
    bar = drawing.bars[2]
    assert bool(bar.below) == (size != 0)
    text = html.render(broken)
    assert not re.search(r'd="[^"]*(nan|inf)', text)
    assert terminal.render(broken)
    assert markdown.render(broken)


def test_the_page_leads_with_the_format_unless_the_kernel_drifts() -> None:
    page = html.render(cases.quantised())
    assert page.index('id="page-format"') < page.index('id="page-curve"')
    assert 'class="chart costs wide"' in page
    assert 'class="chart costs narrow"' in page
    drifting = html.render(cases.misstored())
    assert drifting.index('id="page-format"') > drifting.index('id="page-curve"')
    assert "page-format" not in html.render(cases.passing())


def test_junit_has_a_failing_case_for_the_format_and_no_error() -> None:
    suite = ET.fromstring(junit.render(cases.costly())).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    failed = [
        case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None
    ]
    assert failed == ["format"]
    assert suite.get("tests") == str(len(list(suite.iter("testcase"))))
    passed = ET.fromstring(junit.render(cases.quantised())).find("testsuite")
    assert passed is not None
    assert (passed.get("failures"), passed.get("errors")) == ("0", "0")


def test_the_table_for_spreadsheets_has_both_parts() -> None:
    lines = list(csv.DictReader(io.StringIO(table.render(cases.quantised()))))
    assert float(lines[-1]["format_cost"]) == pytest.approx(0.24)
    assert float(lines[-1]["format_kernel"]) == pytest.approx(3e-7)
    assert float(lines[-1]["format_snr_db"]) == pytest.approx(-20 * math.log10(0.08))
    assert {
        line["format_cost"] for line in csv.DictReader(io.StringIO(table.render(cases.passing())))
    } == {""}
