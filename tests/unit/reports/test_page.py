"""The HTML page and the index: what is on them, and that nothing foreign can act there."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from driftwalk.result import Benchmark, Report
from driftwalk_reports import heatmap, html, index, page, timing
from driftwalk_reports.numbers import NOTHING
from driftwalk_reports.rows import to_rows
from unit.reports import cases


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
    read = _Page(text := html.render(report))
    assert all(link.startswith("#") or link == "data:," for link in read.links)
    assert "://" not in text.replace(report.command, "")
    assert "@import" not in text
    assert "url(" not in text
    assert not read.handlers
    assert not {"img", "iframe", "object", "embed"} & set(read.tags)
    run = re.findall(r"<script(?![^>]*application/json)[^>]*>", text)
    assert run == ["<script>"], "one script, ours"


def test_hostile_names_are_shown_literally_on_the_page() -> None:
    text = html.render(cases.hostile())
    read = _Page(text)
    shown = "</script><img src=x onerror=alert(1)>|`*_[bold red]\\x1b[31m\\x00"
    assert shown in read.text
    assert "<img" not in text
    for name in cases.NAMES:
        assert f"{name}{shown}" in read.text


def test_every_point_can_be_linked_to(report: Report) -> None:
    read = _Page(html.render(report))
    assert len(read.ids) == len(set(read.ids))
    if report.layers[:1] and report.layers[0].point.name == "embed":
        assert {layer.point.name for layer in report.layers} <= set(read.ids)
        assert {link[1:] for link in read.links if link.startswith("#")} <= set(read.ids)


def test_the_page_opens_at_what_matters() -> None:
    text = html.render(cases.drifting())
    opened = re.findall(r'<details id="([^"]*)"[^>]* open>', text)
    assert opened == ["layer.3"]
    assert re.findall(r"<details[^>]* open>", html.render(cases.passing())) == []


def test_a_point_may_be_called_like_a_part_of_the_page() -> None:
    names = ("page-filter", "tip", "filter", "page-points", "shown")
    arrays = dict(zip(names, cases.states().values(), strict=False))
    text = html.render(cases.make(arrays, arrays))
    script = text[text.rindex("<script>") :]
    assert "getElementById" not in script, "ids belong to the points"
    for part in ("filter", "shown", "tip"):
        assert len(re.findall(f'data-part="{part}"', text[: -len(script)])) == 1


def test_inline_data_cannot_end_its_element() -> None:
    hostile = "</script><!--<script>&\u2028\u2029"
    text = str(page.inline_json([hostile]))
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == [hostile]


# Charts


def test_the_drift_chart_has_candidate_yardstick_allowance_and_reference() -> None:
    report = cases.told(cases.drifting())
    chart = html.drift_chart(report, to_rows(report))
    assert chart is not None
    looks = [drawn.look for drawn in chart.panels[0].series]
    assert looks == ["allowance", "yardstick", "reference", "candidate"]
    allowance, yardstick, _, candidate = chart.panels[0].series
    heights = [
        [float(point.split(",")[1]) for line in drawn.lines for point in line.split()]
        for drawn in (allowance, yardstick, candidate)
    ]
    assert all(a < y for a, y in zip(heights[0], heights[1], strict=True)), "larger is higher"
    at = [layer.point.name for layer in report.layers].index("layer.3")
    assert heights[2][at] < heights[0][at] < heights[2][at - 1]
    assert [dot.ok for dot in candidate.dots] == [layer.ok for layer in report.layers]


def test_without_truth_the_chart_shows_the_difference_from_the_reference() -> None:
    report = cases.drifting()
    chart = html.drift_chart(report, to_rows(report))
    assert chart is not None
    assert [drawn.look for drawn in chart.panels[0].series] == ["candidate"]
    assert chart.panels[0].title.startswith("difference from the reference")
    assert html.blame_chart(report, to_rows(report)) is None


def test_a_hole_in_the_curve_where_nothing_was_measured() -> None:
    report = cases.missing()
    chart = html.drift_chart(report, to_rows(report))
    assert chart is not None
    for panel in chart.panels:
        (drawn,) = panel.series
        assert [len(line.split()) for line in drawn.lines] == [5, 2]
        assert [dot.symbol for dot in drawn.dots if not dot.on_scale] == ["∅", "∅"]


def test_zero_has_a_place_of_its_own_below_the_decades() -> None:
    report = cases.exact()
    chart = html.drift_chart(report, to_rows(report))
    assert chart is not None
    zero, lowest = chart.panels[0].ticks[:2]
    assert zero.label == "0"
    assert zero.at > lowest.at
    assert {dot.y for dot in chart.panels[0].series[0].dots} == {zero.at}


def test_other_candidates_are_drawn_beside_by_the_name_of_the_point() -> None:
    report, other = cases.passing(), cases.drifting()
    chart = html.drift_chart(report, to_rows(report), [other])
    assert chart is not None
    own, beside = chart.panels[0].series
    assert (own.look, beside.look) == ("candidate", "other0")
    assert [dot.ok for dot in beside.dots] == [layer.ok for layer in other.layers]
    fewer = dataclasses.replace(other, layers=other.layers[::2])
    chart = html.drift_chart(report, to_rows(report), [fewer])
    assert chart is not None
    assert [dot.on_scale for dot in chart.panels[0].series[1].dots] == [
        layer.index % 2 == 0 for layer in report.layers
    ]


def test_the_blame_chart_marks_the_guilty_layer_alone() -> None:
    report = cases.told(cases.drifting())
    chart = html.blame_chart(report, to_rows(report))
    assert chart is not None
    split, gain = chart.panels
    assert [drawn.look for drawn in split.series] == ["allowance", "inherited", "introduced"]
    names = [layer.point.name for layer in report.layers]
    bad = [name for name, dot in zip(names, split.series[2].dots, strict=True) if not dot.ok]
    assert bad == ["layer.3"]
    assert all(dot.ok for dot in split.series[1].dots + gain.series[0].dots)


def test_charts_are_well_formed_svg() -> None:
    text = html.render(cases.told(cases.drifting()), [("../b/report.html", cases.passing())])
    found = re.findall(r"<svg class=\"(?:chart wide|chart narrow|heat)\".*?</svg>", text, re.DOTALL)
    assert len(found) == 6, "drift and blame, wide and narrow; total and introduced"
    for svg in found:
        ET.fromstring(svg)


# Heatmaps


def test_the_heatmap_has_a_field_per_token_that_counts() -> None:
    (drawn,) = heatmap.heatmaps(cases.drifting())
    known = [value for line in drawn.values for value in line if value is not None]
    assert len(known) == 9 * 6, "two of the eight positions are padding"
    fields = [
        (x + i, y)
        for path in drawn.paths
        for x, y, run in re.findall(r"M(\d+) (\d+)h(\d+)", path)
        for x, y, run in [(int(x), int(y), int(run))]
        for i in range(run)
    ]
    there = {
        (x, y)
        for y, line in enumerate(drawn.values)
        for x, value in enumerate(line)
        if value is not None
    }
    assert len(fields) == len(there), "no field is drawn twice"
    assert set(fields) == there


def test_the_largest_value_has_the_strongest_colour() -> None:
    (drawn,) = heatmap.heatmaps(cases.drifting())
    values = {
        (x, y): float(value)
        for y, line in enumerate(drawn.values)
        for x, value in enumerate(line)
        if value is not None
    }
    x, y = max(values, key=lambda at: values[at])
    runs = re.findall(r"M(\d+) (\d+)h(\d+)", drawn.paths[heatmap.LEVELS - 1])
    assert any(int(b) == y and int(a) <= x < int(a) + int(n) for a, b, n in runs)


def test_the_fields_of_a_point_add_up_to_its_relative_error() -> None:
    """Whatever the size of a state: the mean square over its tokens is rel_l2 squared."""
    report = cases.drifting()
    (drawn,) = heatmap.heatmaps(report)
    for line, layer in zip(drawn.values, report.layers, strict=True):
        values = [float(value) for value in line if value is not None]
        mean_square = sum(value * value for value in values) / len(values)
        assert layer.metrics is not None
        assert mean_square**0.5 == pytest.approx(layer.metrics.rel_l2, rel=0.01)


def test_total_and_introduced_share_one_scale() -> None:
    total, introduced = heatmap.heatmaps(cases.told(cases.drifting()))
    assert (total.title, introduced.title) == ("total error", "introduced error")
    assert (total.low, total.high) == (introduced.low, introduced.high)


def test_a_token_that_is_not_finite_is_drawn_apart() -> None:
    (drawn,) = heatmap.heatmaps(cases.nonfinite())
    assert drawn.paths[heatmap.BEYOND]
    assert "inf" in {value for line in drawn.values for value in line}
    assert "NaN or Inf" in html.render(cases.nonfinite())
    assert not heatmap.heatmaps(cases.drifting())[0].paths[heatmap.BEYOND]


def test_a_deep_report_is_drawn_in_bins() -> None:
    (drawn,) = heatmap.heatmaps(cases.deep())
    assert len(drawn.lines) <= heatmap.MOST_LINES
    assert len(drawn.columns) <= heatmap.MOST_COLUMNS
    assert "largest of its bin" in html.render(cases.deep())
    assert "largest of its bin" not in html.render(cases.drifting())


def test_a_bin_shows_its_largest() -> None:
    report = cases.deep()
    (drawn,) = heatmap.heatmaps(report)
    largest = [max(float(v) for v in line if v is not None) for line in drawn.values]
    alone = []
    for layer in report.layers:
        one = dataclasses.replace(report, layers=(layer,))
        (single,) = heatmap.heatmaps(one)
        alone.append(max(float(v) for v in single.values[0] if v is not None))
    step = -(-len(alone) // heatmap.MOST_LINES)
    assert largest == [max(alone[i : i + step]) for i in range(0, len(alone), step)]


# Timing


def test_benchmarks_have_a_median_and_a_spread() -> None:
    runs = {
        "reference": Benchmark((0.2, 0.1, 0.3, 0.2, 0.4), {"layer.0": 0.01, "layer.1": 0.02}),
        "candidate": Benchmark((0.1, 0.1), {"layer.1": 0.005}),
    }
    found = timing.timing(dataclasses.replace(cases.passing(), benchmarks=runs))
    slow, fast = found.bars
    assert (slow.median, slow.spread, slow.runs) == ("200 ms", "200 ms to 300 ms", 5)
    assert (slow.at, slow.low, slow.high) == (50.0, 50.0, 75.0)
    assert (fast.median, fast.at) == ("100 ms", 25.0)
    assert found.layers.rows == (
        ("layer.0", (("10 ms", 50.0), (NOTHING, 0.0))),
        ("layer.1", (("20 ms", 100.0), ("5 ms", 25.0))),
    )
    text = html.render(dataclasses.replace(cases.passing(), benchmarks=runs))
    assert "How long one run of the model takes" in text
    assert "How long one run of the model takes" not in html.render(cases.passing())


# The index


def test_the_index_is_a_matrix_of_links() -> None:
    drifting, passing = cases.drifting(), cases.passing()
    other = dataclasses.replace(passing, model={"label": "another"})
    text = index.render([("a/report.html", drifting), ("b/report.html", other)])
    read = _Page(text)
    assert read.links.count("a/report.html") == read.links.count("b/report.html") == 2
    assert "DRIFT: 2 runs: 1 drift, 1 pass." in read.text
    assert "another" in read.text
    assert "at layer.3" in read.text


def test_the_index_shows_hostile_names_literally() -> None:
    report = dataclasses.replace(cases.hostile(), model={"label": "<img src=x>\"'"})
    text = index.render([("a/report.html", report), ("b/report.html", report)])
    assert "<img" not in text
    assert "<img src=x>\"'" in _Page(text).text
