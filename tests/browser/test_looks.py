"""Light, dark, paper, and screens from a phone's to a wall's."""

from __future__ import annotations

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


@pytest.mark.parametrize("case", ["blamed", "hostile", "long", "many"])
def test_no_label_of_a_picture_is_cut_off(reader: Reader, case: str) -> None:
    assert reader.open(case).evaluate(CUT) == []
