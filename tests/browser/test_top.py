"""The first screen: the verdict, its links, and commands to copy; with and without JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser import pages
from browser.reader import FILTER, TIP, Reader, focused, in_view, is_open, opens, row, shown
from driftwalk.result import Report

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_real_run(reader: Reader) -> None:
    report = pages.CASES["real-drift"]()
    page = reader.open("real-drift")
    assert "departs from" in page.locator("h1").inner_text()
    assert shown(page) == [layer.point.name for layer in report.layers]
    assert page.locator("h1 a.point").inner_text() == report.cause == "layer.3"
    assert page.locator("svg.chart:visible").count() == 2
    assert page.locator("svg.heat").count() == 2
    page.locator("svg.heat").first.focus()
    page.keyboard.press("ArrowRight")
    assert f"row 0, token 0 {report.probe.tokens[0][0]}" in page.locator(TIP).inner_text()


@pytest.mark.parametrize("case", ["pass", "nan", "hostile"])
def test_without_javascript(reader: Reader, case: str) -> None:
    report = pages.CASES[case]()
    page = reader.open(case, java_script_enabled=False)
    assert page.locator("h1").inner_text().startswith(f"{report.verdict.upper()}: ")
    rows = page.locator("details.entry")
    names = rows.locator("summary .name")
    assert rows.count() == len(report.layers)
    assert all(names.nth(i).is_visible() for i in range(rows.count()))
    assert names.all_inner_texts() == _clean(report)
    assert not page.locator(".tools").is_visible(), "what needs a script is not offered"
    assert not any(button.is_visible() for button in page.locator("button.copy").all())
    assert page.locator("svg.chart").first.is_visible()
    rows.first.locator("summary").click()
    assert rows.first.locator("dl.facts").is_visible()


def _clean(report: Report) -> list[str]:
    from driftwalk_reports.numbers import clean

    return [clean(layer.point.name) for layer in report.layers]


@pytest.mark.parametrize(
    ("case", "link", "name"),
    [
        ("apart", "h1 a.point >> nth=0", "layer.3"),
        ("apart", "h1 a.point >> nth=1", "layer.1"),
        ("apart", ".tile a.point >> nth=0", "layer.3"),
        ("pass", ".tile a.point >> nth=0", None),
        ("hostile", "h1 a.point >> nth=0", pages.SCRIPT),
    ],
)
def test_a_link_at_the_top_leads_to_the_row(
    reader: Reader, case: str, link: str, name: str | None
) -> None:
    page = reader.open(case)
    entry = row(page, name or page.locator(link).inner_text())
    for _ in range(2):  # again, when the address names the row already
        entry.evaluate("row => { row.open = false; }")
        page.evaluate("scrollTo(0, 0)")
        assert not is_open(entry)
        assert not in_view(entry)
        page.locator(link).click()
        assert opens(entry)
        assert entry.locator("dl.facts").is_visible()
        assert focused(page) == entry.get_attribute("data-name")


NO_CLIPBOARD = {
    "granted": "",
    "refused": "Clipboard.prototype.writeText = () => Promise.reject(new Error('no'));",
    "absent": "Object.defineProperty(Navigator.prototype, 'clipboard', { value: undefined });",
}


@pytest.mark.parametrize("clipboard", list(NO_CLIPBOARD))
def test_commands_are_copied(reader: Reader, clipboard: str) -> None:
    page = reader.open(
        "blamed", before=NO_CLIPBOARD[clipboard], permissions=["clipboard-read", "clipboard-write"]
    )
    command = pages.blamed().command
    buttons = page.locator("button.copy")
    copied = [_copied(page, at) for at in range(buttons.count())]
    assert copied[:2] == [command, f"{command} --depth module"]
    assert copied == page.locator(".command code").all_inner_texts()
    assert len(set(copied)) == len(copied) >= 3


def _copied(page: Page, at: int) -> str:
    """Press a button, and paste what it copied into the only field there is."""
    button = page.locator("button.copy").nth(at)
    button.click()
    button.filter(has_text="Copied").wait_for()
    assert button.evaluate("button => button === document.activeElement"), "keys go on from here"
    page.locator(FILTER).fill("")
    page.locator(FILTER).focus()
    page.keyboard.press("ControlOrMeta+V")
    return page.locator(FILTER).input_value()
