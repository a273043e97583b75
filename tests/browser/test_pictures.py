"""Charts and heatmaps: what they say of the point that is pointed at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import pages
from browser.reader import FILTER, TIP, Reader, is_open, opens, row
from driftwalk.layer_drift import LayerDrift
from driftwalk.measure.tokens import TokenErrors
from driftwalk.result import Report
from driftwalk_reports.numbers import number

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WIDTH = 12
PADDED = WIDTH + 1 + WIDTH // 2
"""The column where padding begins: of two rows, with a gap between, the second is padded from its
middle."""


def token(column: int) -> int:
    """The place of a column's token among those of all rows."""
    return column if column < WIDTH else column - 1


def point_at(page: Page, heat: Locator, line: int, column: int) -> tuple[float, float]:
    """Put the mouse on one field, found by what is drawn: a label's height, a step's width."""
    heat.scroll_into_view_if_needed()
    label, box = heat.locator("a text").nth(line).bounding_box(), heat.bounding_box()
    left, _, step, _ = map(float, (heat.get_attribute("data-box") or "").split())
    assert label
    assert box
    x = box["x"] + (left + (column + 0.5) * step) * box["width"] / 1000
    y = label["y"] + label["height"] / 2
    page.mouse.move(x, y)
    return x, y


def under(page: Page, place: tuple[float, float]) -> str:
    """The class of what is drawn at a place."""
    name: str = page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).getAttribute('class')", list(place)
    )
    return name


def tip(page: Page) -> list[str]:
    return page.locator(TIP).inner_text().split("\n")


def relative(layer: LayerDrift, tokens: TokenErrors | None, at: int) -> str:
    """A token's error over the norm of a typical token of its point."""
    assert tokens
    assert layer.truth
    flat = [value for row in tokens for value in row]
    known = sum(value is not None for value in flat)
    found = flat[at]
    assert found is not None
    return number(found / (layer.truth.scale / math.sqrt(known)))


@pytest.mark.parametrize("kind", ["total", "introduced"])
def test_the_heatmap_says_what_the_mouse_is_on(reader: Reader, kind: str) -> None:
    report = pages.blamed()
    page = reader.open("blamed", height=1600)
    heat = page.locator("svg.heat").nth(0 if kind == "total" else 1)
    for line, column in ((4, 3), (0, 0), (len(report.layers) - 1, PADDED - 1)):
        layer = report.layers[line]
        tokens = layer.tokens if kind == "total" else layer.blame and layer.blame.tokens
        place = point_at(page, heat, line, column)
        text, at = divmod(token(column), WIDTH)
        assert tip(page) == [
            layer.point.name,
            f"row {text}, token {at} {report.probe.tokens[text][at]}",
            relative(layer, tokens, token(column)),
        ]
        assert under(page, place).startswith("h"), "and there a field is drawn"
        cursor = heat.locator(".cursor").bounding_box()
        assert cursor
        assert 0 < place[0] - cursor["x"] < cursor["width"]
        assert 0 < place[1] - cursor["y"] < cursor["height"]
    place = point_at(page, heat, 2, PADDED)
    assert tip(page) == ["layer.1", "row 1, token 6 <pad>", "padding"]
    assert under(page, place) == "heat", "nothing is drawn there"
    point_at(page, heat, 2, WIDTH)
    assert not page.locator(TIP).is_visible(), "between two rows there is nothing to say"
    page.mouse.move(5, 5)
    assert not page.locator(TIP).is_visible()
    assert heat.locator(".cursor").get_attribute("visibility") == "hidden"


def test_the_heatmap_by_keys(reader: Reader) -> None:
    report = pages.blamed()
    page = reader.open("blamed")
    heat = page.locator("svg.heat").first
    heat.focus()

    def press(*keys: str) -> list[str]:
        for key in keys:
            page.keyboard.press(key)
        return tip(page)

    assert press("ArrowRight")[:2] == ["embed", "row 0, token 0 The"]
    assert press("ArrowDown", "ArrowRight") == [
        "layer.0",
        "row 0, token 1 Ġdrift",
        relative(report.layers[1], report.layers[1].tokens, 1),
    ]
    assert (heat.get_attribute("aria-description") or "").startswith("layer.0\nrow 0, token 1")
    assert press(*["ArrowRight"] * (PADDED - 2))[1:] == ["row 1, token 6 <pad>", "padding"]
    assert press(*["ArrowUp"] * 3, *["ArrowLeft"] * 30)[:2] == ["embed", "row 0, token 0 The"]
    page.keyboard.press("Escape")
    assert not page.locator(TIP).is_visible()
    press("ArrowDown")
    page.locator(FILTER).focus()
    assert not page.locator(TIP).is_visible()


def test_what_is_not_finite_is_said_and_marked(reader: Reader) -> None:
    page = reader.open("nan", height=1600)
    place = point_at(page, page.locator("svg.heat").first, 3, 1)
    assert tip(page)[0] == "layer.2"
    assert tip(page)[2] in ("NaN", "inf")
    assert under(page, place) == "h9"
    assert page.get_by_text("NaN or Inf", exact=True).is_visible()


@pytest.mark.parametrize("chart", ["curve", "blame"])
def test_a_chart_names_the_point_and_leads_to_it(reader: Reader, chart: str) -> None:
    layer = pages.blamed().layers[8]
    assert layer.truth
    assert layer.blame
    page = reader.open("blamed", height=1200)
    hit = page.locator(f"#page-{chart} .hit").nth(8)
    hit.hover()
    told = tip(page)
    assert "layer.7" in told[0]
    if chart == "curve":
        assert f"candidate onnxruntime {number(layer.truth.candidate / layer.truth.scale)}" in told
    else:
        assert f"introduced {number(layer.blame.introduced / layer.truth.scale)}" in told
        assert f"inherited {number(layer.blame.inherited / layer.truth.scale)}" in told
    assert not is_open(row(page, "layer.7"))
    hit.click()
    assert opens(row(page, "layer.7"))
    page.mouse.move(2, 2)
    assert not page.locator(TIP).is_visible()


@pytest.mark.parametrize("at", [0, -1])
def test_tips_stay_on_a_small_screen(reader: Reader, at: int) -> None:
    page = reader.open("long", width=360, height=640)
    page.locator("#page-curve .narrow .hit").nth(at).hover()
    _fits(page)
    page.mouse.move(0, 0)
    page.locator("svg.heat").first.focus()
    page.keyboard.press("ArrowRight")
    for _ in range(24 if at else 0):
        page.keyboard.press("ArrowRight")
    _fits(page)


def _fits(page: Page) -> None:
    box = page.locator(TIP).bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360
    assert 0 <= box["y"] < 640


def test_several_candidates_share_a_chart(reader: Reader, index_page: Path) -> None:
    reports: list[Report] = pages.family()
    page = reader.open(index_page.parent / "01" / "report.html")
    legend = page.locator("#page-curve ul.key li").all_inner_texts()
    for report in reports:
        spec = report.candidate.spec
        own = f"candidate {spec}" if spec == "cand1" else spec
        assert own in [text.strip() for text in legend]
    for look in ("other0", "other1", "other2"):
        assert page.locator(f"#page-curve g.s-{look} polyline").count() >= 2, "in both panels"
    others = page.get_by_role("navigation", name="Other candidates")
    links = others.locator("a.cell").all_inner_texts()
    assert links == ["✗ cand0", "✓ cand2", "✓ cand3"]
    others.get_by_text("cand2").click()
    page.wait_for_url("**/02/report.html")
    assert "cand2" in page.locator("h1").inner_text()
