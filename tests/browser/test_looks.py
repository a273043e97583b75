"""Light, dark, paper, and screens from a phone's to a wall's."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import pages
from browser.reader import TIP, Reader, in_view

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = (360, 1280, 2560, 3840)

COLOURS = """query => {
  const found = document.querySelector(query);
  let behind = found;
  const colour = x => getComputedStyle(x).backgroundColor;
  while (behind.parentElement && /, 0\\)|transparent/.test(colour(behind)))
    behind = behind.parentElement;
  return [getComputedStyle(found).color, colour(behind)];
}"""

TOO_WIDE = """() => {
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")]
    .filter(x => x.checkVisibility() && x.getBoundingClientRect().right > wide + 1)
    .filter(x => !x.closest(".scroll"))
    .map(x => `${x.tagName} ${x.className}`).slice(0, 5);
}"""

CUT = """() => [...document.querySelectorAll("svg text")].filter(text => {
  const own = text.getBoundingClientRect(), room = text.ownerSVGElement.getBoundingClientRect();
  return own.left < room.left - 2 || own.right > room.right + 2
    || own.top < room.top - 2 || own.bottom > room.bottom + 2;
}).map(text => `${text.ownerSVGElement.getAttribute("class")}: ${text.textContent}`)"""


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(page: Page, query: str) -> float:
    light, dark = sorted(map(luminance, page.evaluate(COLOURS, query)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


READ = ("h1", "h1 a", ".tile p", ".hint", "dl.about dt", "summary .name", ".poor", ".good", "td")


@pytest.mark.parametrize("media", ["screen", "print"])
def test_light_and_dark_can_be_read(reader: Reader, media: str) -> None:
    page = reader.open("blamed")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, media=media)  # type: ignore[arg-type]
        behind = luminance(page.evaluate(COLOURS, "main")[1])
        if scheme == "dark" and media == "screen":
            assert behind < 0.05
        else:
            assert behind > 0.85, "paper is white"
        for query in READ:
            assert contrast(page, query) >= 4.5, (scheme, query)


def test_paper_has_no_buttons(reader: Reader) -> None:
    page = reader.open("blamed")
    assert page.locator(".tools").is_visible()
    page.emulate_media(media="print")
    for query in (".tools", "button.copy", ".skip", TIP):
        assert not any(x.is_visible() for x in page.locator(query).all()), query
    for query in ("h1", ".tile", "svg.chart", "svg.heat", "details.entry", ".command code"):
        assert page.locator(query).first.is_visible(), query


@pytest.mark.parametrize("case", ["index", *pages.CASES])
def test_every_page_on_every_screen(reader: Reader, index_page: Path, case: str) -> None:
    """The verdict is on the first screen, nothing runs off the side, rows open or not.

    And no page asks for anything or complains: the reader sees to that.
    """
    page = reader.open(index_page if case == "index" else case)
    title = page.locator("h1")
    verdict = "drift" if case == "index" else pages.CASES[case]().verdict
    assert title.inner_text().startswith(f"{verdict.upper()}: ")
    assert in_view(title)
    assert page.locator(".badge").is_visible()
    page.evaluate("[...document.querySelectorAll('details')].slice(-40).map(x => x.open = true)")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 300})
        assert page.evaluate(TOO_WIDE) == [], width
        seen, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert seen <= room, width


@pytest.mark.parametrize("case", ["blamed", "hostile", "long", "many", "costly", "real-int8"])
def test_no_label_of_a_picture_is_cut_off(reader: Reader, case: str) -> None:
    assert reader.open(case).evaluate(CUT) == []


@pytest.mark.parametrize(
    "case", ["blamed", "hostile", "long", "many", "real-smollm2", "costly", "real-int8"]
)
def test_on_a_phone_no_label_is_cut_off_or_too_small(reader: Reader, case: str) -> None:
    page = reader.open(case, width=400)
    assert page.evaluate(CUT) == []
    sizes: list[float] = page.eval_on_selector_all(
        "svg.chart:not(.wide) text",
        "all => all.map(x => parseFloat(getComputedStyle(x).fontSize)"
        " * x.ownerSVGElement.getScreenCTM().a)",
    )
    assert sizes
    assert min(sizes) > 10, "as large as it is read elsewhere"


@pytest.mark.parametrize("case", ["blamed", "many"])
@pytest.mark.parametrize("script", [True, False])
def test_on_a_phone_the_guilty_layer_is_in_sight(reader: Reader, case: str, script: bool) -> None:
    """Nothing has to be scrolled sideways, with and without JavaScript."""
    page = reader.open(case, width=400, java_script_enabled=script)
    for chart in ("curve", "blame"):
        seen = page.locator(f"#page-{chart} svg:visible .strong")
        texts = seen.all_text_contents()
        assert {"first divergence", "root cause", "layer.3"} <= set(texts), chart
        for box in (seen.nth(at).bounding_box() for at in range(len(texts))):
            assert box
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400
        flag = page.locator(f"#page-{chart} svg:visible .flag").first.bounding_box()
        assert flag
        assert 0 < flag["x"] < 400


BROKEN = """() => [...document.querySelectorAll("thead th, .cell")].flatMap(cell => {
  const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [];
  while (words.nextNode()) for (const word of words.currentNode.data.matchAll(/\\w+/g)) {
    const range = document.createRange();
    range.setStart(words.currentNode, word.index);
    range.setEnd(words.currentNode, word.index + word[0].length);
    if (range.getClientRects().length > 1) found.push(word[0]);
  }
  return found;
})"""


@pytest.mark.parametrize("width", [360, 400, 800, 1280])
def test_no_heading_of_the_index_breaks_inside_a_word(
    reader: Reader, index_page: Path, width: int
) -> None:
    assert reader.open(index_page, width=width).evaluate(BROKEN) == []


def test_bars_tell_a_little_beyond_from_far_beyond(reader: Reader) -> None:
    report = pages.blamed()
    page = reader.open("blamed")
    wide: list[float] = page.eval_on_selector_all(
        ".meter .bar",
        "all => all.map(bar => bar.firstElementChild.getBoundingClientRect().width"
        " / bar.getBoundingClientRect().width)",
    )
    used = [layer.tolerance.needed for layer in report.layers if layer.tolerance]
    assert len(wide) == len(used)
    most = math.ceil(math.log10(max(used)))
    for share, length in zip(used, wide, strict=True):
        assert length == pytest.approx((math.log10(share) + 2) / (most + 2), abs=0.02)
    assert page.locator("#page-points .hint").first.inner_text().count("log scale") == 1


def test_an_opened_point_leads_with_three_numbers(reader: Reader) -> None:
    page = reader.open("blamed", "layer.7")
    inside = page.locator("details.entry[data-name='layer.7'] .inside")
    numbers = inside.locator(".leading dt").all_inner_texts()
    assert numbers == ["allowance used", "rel L2", "largest difference"]
    first, rest = inside.locator(".leading"), inside.locator(".facts")
    above, below = first.bounding_box(), rest.bounding_box()
    assert above
    assert below
    assert above["y"] + above["height"] <= below["y"]
    assert "rel L2" not in rest.locator("dt").all_inner_texts(), "no number is shown twice"


def test_rows_of_a_batch_stand_apart_above_an_axis(reader: Reader) -> None:
    heat = reader.open("blamed").locator("svg.heat").first
    rims = [heat.locator(".rim").nth(at).bounding_box() for at in range(2)]
    assert heat.locator(".rim").count() == 2
    assert rims[0]
    assert rims[1]
    assert rims[0]["x"] + rims[0]["width"] < rims[1]["x"] - 4
    texts = heat.locator("text.axis").all_text_contents()
    assert texts == ["row 0, token", "row 1, token", "point ↑"]
