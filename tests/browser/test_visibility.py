"""The map of all states: pointing at one, or walking to it, shows its cone; offline, and still."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from browser import pages
from browser.reader import Reader
from browser.test_accessibility import COLOURS, EVERYTHING, axe, serious
from driftwalk.adapter import BackendInfo
from driftwalk.effects import Carried, Patch, Patching, Propagation
from driftwalk.result import Tool
from driftwalk.tasks.studies.results import Pairs, Visibility
from driftwalk_reports import html

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["axe"]

MAP, CONE, TOLD = ("[data-part=map]", "[data-part=cone]", "[data-part=told]")
HOSTILE = "</script><img src=x onerror=alert(1)>"


def made(rows: int = 5, columns: int = 6, hostile: bool = False) -> Visibility:
    """A causal map of random numbers."""
    random = np.random.default_rng(0)
    influence = 10 ** random.uniform(-3, 0, (rows, columns, rows, columns))
    for n in range(rows):
        influence[n, :, n:] = 0
        for t in range(columns):
            influence[n, t, :, t + 1 :] = 0
    names = ("embed", *(f"layer.{i}" for i in range(rows - 2)), "norm")
    words = [f"word{i}" for i in range(columns)]
    if hostile:
        words[1] = HOSTILE
    return Visibility(
        tool=Tool("driftwalk", "0.1.0"),
        created="2026-11-15T00:00:00+00:00",
        command="driftwalk visibility gpt2",
        model={"label": HOSTILE if hostile else "gpt2"},
        backend=BackendInfo("torch", "torch", "cpu", "fp32"),
        environment={"python": "3.11"},
        text=HOSTILE if hostile else "some words",
        tokens=tuple(words),
        points=names,
        stack="transformer.h",
        point=names[2],
        position=3,
        width=64,
        directions=2,
        error=0.05,
        norms=tuple(map(tuple, random.uniform(1, 2, (rows, columns)).tolist())),
        pairs=Pairs.of(influence),
        causal=True,
    )


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made().save(tmp_path_factory.mktemp("visibility")) / "visibility.html"


def centre(page: Page, row: int, column: int, part: str = MAP) -> tuple[float, float]:
    """Where a field lies on the screen; rows count from the bottom."""
    svg = page.locator(part)
    left, top, wide, tall = map(float, (svg.get_attribute("data-box") or "").split())
    box = svg.bounding_box()
    assert box is not None
    scale = box["width"] / 1000
    x, y = left + (column + 0.5) * wide, top + (4 - row + 0.5) * tall
    return box["x"] + x * scale, box["y"] + y * scale


def levels(page: Page) -> dict[tuple[int, int], int]:
    """The colour of each field (row, column) of the cone that is not exactly zero."""
    found: dict[tuple[int, int], int] = {}
    for level, path in enumerate(page.locator(f"{CONE} path").all()):
        for x, y, wide in re.findall(r"M(\d+) (\d+)h(\d+)", path.get_attribute("d") or ""):
            found |= {(4 - int(y), int(x) + i): level for i in range(int(wide))}
    return found


def coloured(page: Page) -> set[tuple[int, int]]:
    return set(levels(page))


def expected(row: int, at: int) -> set[tuple[int, int]]:
    below = {(y, x) for y in range(row) for x in range(at + 1)}
    above = {(y, x) for y in range(row + 1, 5) for x in range(at, 6)}
    return below | above | {(row, at)}


def test_hovering_the_map_changes_the_cone(reader: Reader, page_file: Path) -> None:
    page = reader.open(page_file, height=1200)
    assert page.locator(TOLD).inner_text() == "layer.1 at token 3 word3"
    assert coloured(page) == expected(2, 3)
    page.mouse.move(*centre(page, 3, 1))
    assert page.locator(TOLD).inner_text() == "layer.2 at token 1 word1"
    assert coloured(page) == expected(3, 1)
    frames = [page.locator(f"{part} .self").bounding_box() for part in (MAP, CONE)]
    assert frames[0] is not None
    assert frames[1] is not None
    assert frames[0]["x"] == pytest.approx(frames[1]["x"], abs=0.1)
    page.mouse.move(*centre(page, 1, 0, CONE))
    value = made().influence[3, 1, 1, 0]
    told = page.locator(TOLD).inner_text()
    assert told.startswith("layer.2 at token 1 word1 · sees layer.0 at token 0 word0: about ")
    assert float(told.rpartition(" ")[2]) == pytest.approx(value, rel=0.04)
    page.mouse.move(*centre(page, 4, 5, CONE))
    value = made().influence[4, 5, 3, 1]
    assert float(page.locator(TOLD).inner_text().rpartition(" ")[2]) == pytest.approx(
        value, rel=0.04
    )


def test_arrow_keys_walk_the_map(reader: Reader, page_file: Path) -> None:
    page = reader.open(page_file, height=1200)
    page.locator(MAP).focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    assert page.locator(TOLD).inner_text() == "norm at token 4 word4", "the top row is the last"
    assert coloured(page) == expected(4, 4)
    assert page.locator(MAP).get_attribute("aria-description") == "norm at token 4 word4"


def test_normalisations_are_those_of_the_result(reader: Reader, page_file: Path) -> None:
    page = reader.open(page_file, height=1200)
    study = made()
    for kind, name in (("layer", "per layer"), ("norm", "per norm")):
        page.locator(f"input[value={kind}]").check()
        assert page.locator("[data-part=label]").inner_text() == name
        page.mouse.move(*centre(page, 0, 2, CONE))
        told = float(page.locator(TOLD).inner_text().rpartition(" ")[2])
        wanted = study.cone(normalisation=kind)[0, 2]  # type: ignore[arg-type]
        assert told == pytest.approx(wanted, rel=0.06)


def test_the_script_draws_what_the_page_shows_without_it(reader: Reader, page_file: Path) -> None:
    still = reader.open(page_file, java_script_enabled=False)
    assert still.locator("h1").is_visible()
    assert not still.locator("[data-part=kinds]").is_visible()
    assert still.locator("details.still").count() == 2
    still.locator("details.still summary").first.click()
    assert still.locator("[data-part=still]").first.is_visible()
    shown = levels(still)
    live = reader.open(page_file)
    drawn = levels(live)
    assert drawn.keys() == shown.keys() == expected(2, 3)
    off = [abs(drawn[field] - shown[field]) for field in shown]
    assert max(off) <= 1, "one byte a number may move a field to the next colour ..."
    assert sum(off) <= 4, "... here and there"
    assert not live.locator("details.still").first.is_visible()


def test_nothing_serious(reader: Reader, page_file: Path, axe: str) -> None:
    page = reader.open(page_file)
    page.evaluate(axe)
    wrong = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        wrong[scheme] = serious(page, EVERYTHING if scheme == "light" else COLOURS)
    assert wrong == {"light": [], "dark": []}
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "the page itself never scrolls sideways"


def test_names_from_outside_stay_text(reader: Reader, tmp_path: Path) -> None:
    page = reader.open(made(hostile=True).save(tmp_path) / "visibility.html", height=1200)
    page.mouse.move(*centre(page, 3, 1))
    assert HOSTILE in page.locator(TOLD).inner_text()
    assert page.locator("img").count() == 0


def test_effects_in_a_drift_report(reader: Reader, tmp_path: Path, axe: str) -> None:
    report = pages.blamed(4)
    names = [layer.point.name for layer in report.layers]
    carried = [
        Carried(name, 1.0, 1.0 + 0.5 * i, 0.1 * i, 1.0, 1.0, 0.1) for i, name in enumerate(names)
    ]
    patches = tuple(Patch(name, 3 * (i < 4)) for i, name in enumerate(names[:-1]))
    report = replace(
        report,
        propagation=Propagation("layer.3", tuple(carried), 1.0),
        patching=Patching(18, 3, patches, 1.0),
    )
    path = tmp_path / "report.html"
    path.write_text(html.render(report), "utf-8")
    page = reader.open(path)
    restored = page.locator("#page-restored")
    assert "restoring layer.3 brings all of them back" in restored.inner_text()
    assert restored.locator("svg.chart .strong").first.text_content() == "errors stop mattering"
    assert "no longer small" in page.locator("#page-carried").inner_text()
    page.locator("#page-carried summary").click()
    assert page.locator("#page-carried tbody tr").count() == len(names)
    page.evaluate(axe)
    assert serious(page, EVERYTHING) == []


def test_a_full_map_is_small(tmp_path: Path) -> None:
    """12 layers, 64 tokens: less than 2 MB."""
    found = made(14, 64).save(tmp_path)
    assert (found / "visibility.html").stat().st_size < 1_000_000
    assert (found / "visibility.json").stat().st_size < 2_000_000
