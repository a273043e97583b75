"""The table of points: deep links, filter, sort and keys."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from urllib.parse import quote

import pytest

from browser import pages
from browser.reader import (
    COUNT,
    FILTER,
    NOTHING,
    Reader,
    focused,
    in_view,
    is_open,
    opens,
    row,
    shown,
)
from driftwalk.layer_drift import LayerDrift
from driftwalk.result import Report


def names(report: Report, wanted: str = "*") -> list[str]:
    return [x.point.name for x in report.layers if fnmatchcase(x.point.name, wanted)]


@pytest.mark.parametrize(
    ("case", "name"),
    [("blamed", "layer.7"), ("hostile", pages.SCRIPT), ("clashing", "tip")],
)
def test_a_deep_link_opens_its_row(reader: Reader, case: str, name: str) -> None:
    page = reader.open(case, quote(name, safe=""))
    entry = row(page, name)
    assert opens(entry)
    assert not is_open(row(page, "logits"))


def test_an_address_that_changes_opens_a_row(reader: Reader) -> None:
    page = reader.open("blamed", "no%zz-such-point")
    entry = row(page, "layer.9")
    assert not is_open(entry)
    page.evaluate("location.hash = 'layer.9'")
    assert opens(entry)
    page.go_back()
    assert is_open(entry)


def test_filter(reader: Reader) -> None:
    report = pages.blamed()
    every = names(report)
    drifted = [x.point.name for x in report.layers if x.verdict == "drift"]
    page = reader.open("blamed")
    field, count = page.locator(FILTER), page.locator(COUNT)
    for text, expected in {
        "drift": drifted,
        "failed": drifted,
        "ok": [name for name in every if name not in drifted],
        "layer.1*": ["layer.1", "layer.10", "layer.11"],
        "layer.?": names(report, "layer.?"),
        "LAYER.2": ["layer.2"],
        "or": ["norm"],
        "embed  norm ": ["embed", "norm"],
        ".": names(report, "*.*"),
    }.items():
        field.fill(text)
        assert shown(page) == expected, text
        assert count.inner_text() == f"{len(expected)} of {len(every)} points"
        assert not page.locator(NOTHING).is_visible()
    field.fill("zzz[")
    assert shown(page) == []
    assert page.locator(NOTHING).inner_text() == "No point matches."
    assert count.inner_text() == f"0 of {len(every)} points"
    field.press("Escape")
    assert field.input_value() == ""
    assert shown(page) == every
    assert count.inner_text() == ""
    assert not page.locator(NOTHING).is_visible()


def test_a_link_to_a_row_that_a_filter_hides(reader: Reader) -> None:
    page = reader.open("blamed")
    page.locator(FILTER).fill("embed")
    assert shown(page) == ["embed"]
    page.locator("h1 a.point").first.click()
    assert opens(row(page, "layer.3"))
    assert shown(page) == names(pages.blamed())
    assert page.locator(FILTER).input_value() == ""


def value(layer: LayerDrift, key: str) -> float | str | None:
    """What a header sorts by, read from the result."""
    if key == "verdict":
        return layer.verdict
    if key == "index":
        return layer.index
    if layer.metrics is None or layer.tolerance is None or layer.verdict == "nonfinite":
        return None
    measured = {"error": layer.metrics.rel_l2, "max": layer.metrics.max_abs}
    return measured.get(key, layer.tolerance.needed)


def in_order(report: Report, key: str, down: bool) -> list[str]:
    """Sorted, equals in model order, unknown values last."""
    valued = [(value(layer, key), layer) for layer in report.layers]
    known = sorted(
        (pair for pair in valued if pair[0] is not None), key=lambda pair: pair[0], reverse=down
    )
    return [layer.point.name for _, layer in (*known, *(p for p in valued if p[0] is None))]


def test_sort(reader: Reader) -> None:
    report = pages.mixed()
    assert math.inf in [value(layer, "needed") for layer in report.layers]
    page = reader.open("mixed")
    assert shown(page) == names(report)
    for key in ("error", "max", "needed", "verdict", "index"):
        header = page.locator(f"button.sort[data-key={key}]")
        first = key != "index"
        for down in (first, not first, first):
            header.click()
            assert shown(page) == in_order(report, key, down), (key, down)
            assert page.locator("button.sort[aria-pressed=true]").count() == 1
            assert header.get_attribute("aria-pressed") == "true"
    assert shown(page) == names(report), "back in model order"


def test_keys_walk_the_rows_that_are_shown(reader: Reader) -> None:
    every = names(pages.blamed())
    page = reader.open("blamed")

    def press(*keys: str) -> str | None:
        for key in keys:
            page.keyboard.press(key)
        return focused(page)

    assert press("j") == every[0]
    assert press("j", "j") == every[2]
    assert press("k") == every[1]
    assert press("k", "k", "k") == every[0], "the first row is the end"
    page.keyboard.press("Enter")
    assert is_open(row(page, every[0]))
    assert press(*"j" * 20) == every[-1]
    assert in_view(row(page, every[-1]))
    assert press("Control+k", "Alt+k") == every[-1], "left to the browser"

    page.keyboard.press("/")
    field = page.locator(FILTER)
    assert field.evaluate("field => field === document.activeElement")
    page.keyboard.type("jk/j")
    assert field.input_value() == "jk/j", "typed, not obeyed"
    field.fill("layer.1*")
    page.locator("#page-points h2").click()
    assert press("j", "j") == "layer.10"
    assert press("j", "j") == "layer.11"

    page.keyboard.press("/")
    page.keyboard.press("Escape")
    page.locator("button.sort[data-key=error]").click()
    page.locator("#page-points h2").click()
    assert press("j") == in_order(pages.blamed(), "error", True)[0], "in the order on the screen"
    page.locator("#page-points h2").click()
    assert press("k") == in_order(pages.blamed(), "error", True)[-1], "backwards from nowhere"


def test_points_named_like_parts_of_the_page(reader: Reader) -> None:
    """A layer may be called anything, also what the page calls its own parts."""
    report = pages.clashing()
    page = reader.open("clashing")
    assert shown(page) == names(report)
    page.locator(".tools input").fill("zzz")
    assert shown(page) == []
    assert page.get_by_text("No point matches.").is_visible()
    page.locator(".tools input").press("Escape")
    page.locator("button.sort[data-key=index]").click()
    page.locator("button.sort[data-key=index]").click()
    assert shown(page) == names(report)[::-1]
    page.locator("svg.heat").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tooltip").inner_text().startswith("embed\nrow 0, token 0 The\n")
    assert shown(page) == names(report)[::-1]
