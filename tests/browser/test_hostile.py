"""Names, prompts and messages that would rather be markup. The reader notices any dialog."""

from __future__ import annotations

import json
from pathlib import Path

from browser import pages
from browser.reader import FILTER, HEAT_DATA, TIP, Reader, row
from unit.reports import cases


def test_everything_is_shown_literally(reader: Reader) -> None:
    page = reader.open("hostile")
    title = page.locator("h1").inner_text()
    assert pages.SCRIPT in title
    assert pages.QUOTED in title
    assert pages.QUOTED in page.title()
    about = page.locator("dl.about").inner_text()
    assert pages.QUOTED in about
    assert pages.POISON in about
    assert row(page, pages.SCRIPT).locator("summary .name").inner_text() == pages.SCRIPT
    as_glob = pages.SCRIPT.replace("=", "?")
    assert as_glob in row(page, pages.SCRIPT).locator("dl.facts").inner_text()
    command = page.locator(".command code").first.inner_text()
    assert command == f"driftwalk verify {pages.POISON}"
    for section in ("header ul.aside", ".tiles", "#page-environment", "#page-machine"):
        assert pages.POISON in page.locator(section).inner_text(), section
    assert f"row 0: {pages.SCRIPT}" in page.locator("#page-tokens").inner_text()


def test_nothing_becomes_an_element(reader: Reader) -> None:
    page = reader.open("hostile")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2, "the page's own, and its numbers"
    assert (
        page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(x => x.getAttributeNames())"
            ".filter(x => x.startsWith('on'))"
        )
        == []
    )
    data = json.loads(page.locator(HEAT_DATA).text_content() or "")
    assert pages.SCRIPT in data[0]["lines"]
    assert data[0]["columns"][0] == f"row 0, token 0 {pages.SCRIPT}"


def test_tips_are_text(reader: Reader) -> None:
    page = reader.open("hostile")
    for chart in ("curve", "blame"):
        page.locator(f"#page-{chart} .hit").nth(4).hover()
        assert pages.SCRIPT in page.locator(TIP).inner_text()
    page.mouse.move(0, 0)
    page.locator("svg.heat").first.focus()
    for key in ("ArrowRight", *["ArrowDown"] * 4):
        page.keyboard.press(key)
    told = page.locator(TIP).inner_text().split("\n")
    assert told[:2] == [pages.SCRIPT, f"row 0, token 0 {pages.SCRIPT}"]
    assert page.locator(f"{TIP} *").count() == 0
    page.locator(FILTER).fill(pages.SCRIPT)
    assert row(page, pages.SCRIPT).is_visible()


def test_every_string_hostile_and_the_index_of_such(reader: Reader, tmp_path: Path) -> None:
    """The unit tests' hostile report, with control and bidirectional characters everywhere."""
    path = pages.write_all(tmp_path / "out", [cases.hostile(), pages.hostile()])
    page = reader.open(path)
    for text in (pages.QUOTED, pages.POISON, pages.SCRIPT):
        assert text in page.locator("main").inner_text()
    for folder in ("00", "01"):
        page.goto((tmp_path / "out" / folder / "report.html").as_uri())
        assert page.locator("img").count() == 0
        assert page.locator("h1").is_visible()
        page.locator("svg.heat").first.focus()
        page.keyboard.press("ArrowRight")
        assert page.locator(TIP).is_visible()
