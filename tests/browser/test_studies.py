"""The pages of contrast and geometry: pick, point, read; offline, and without a script too."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.reader import HEAT_DATA, TIP, Reader
from browser.test_accessibility import COLOURS, EVERYTHING, axe, serious
from driftwalk.adapter import BackendInfo
from driftwalk.result import Tool
from driftwalk.states import Point
from driftwalk.tasks.studies.results import (
    Agreement,
    AlignedRow,
    Contrast,
    ContrastLayer,
    Geometry,
    GeometryLayer,
    Study,
)

__all__ = ["axe"]

POINTS = ("embed", "layer.0", "layer.1", "norm")
SPECS = ("torch", "emulated:fp16")
FRANCE = ("The", " capital", " of", " France", " is", " Paris", ".")
GERMANY = ("The", " capital", " of", " Germany", " is", " Berlin", ".")


def head() -> dict[str, object]:
    return {
        "tool": Tool("driftwalk", "0.1.0"),
        "created": "2026-11-15T00:00:00+00:00",
        "command": "driftwalk contrast gpt2",
        "model": {"label": "gpt2"},
        "backend": BackendInfo(SPECS[0], "torch", "cpu", "fp32"),
        "environment": {"python": "3.11"},
    }


def contrast() -> Contrast:
    differs = tuple(a != b for a, b in zip(FRANCE, GERMANY, strict=True))
    row = AlignedRow(("".join(FRANCE), "".join(GERMANY)), FRANCE, GERMANY, differs, (7, 7))
    layers = tuple(
        ContrastLayer(
            Point(name),
            *((tuple(0.0 if i < 3 else float(at + i) for i in range(7)),),) * 3,
            distance=at + 4.0,
            drift=0.001 * (at + 1),
            share=0.001 * (at + 1) / (at + 4.0),
        )
        for at, name in enumerate(POINTS)
    )
    return Contrast(
        **head(),  # type: ignore[arg-type]
        rows=(row,),
        hashes=("0" * 64, "1" * 64),
        causal=True,
        causal_by="the model's attention says so",
        candidate=BackendInfo(SPECS[1], "emulated", "cpu", "fp16"),
        layers=layers,
    )


def geometry() -> Geometry:
    places = tuple((float(i), float(i * i % 7)) for i in range(12))
    layers = tuple(
        GeometryLayer(
            Point(name),
            64,
            places,
            (0.5, 0.25),
            0.1 * at,
            tuple((x + 0.1 * at, y) for x, y in places),
            0.1 * at,
            Agreement(1 - 0.01 * at, 1 - 1e-6 * at, 0.001 * at, 0.01 * at),
        )
        for at, name in enumerate(POINTS)
    )
    return Geometry(
        **head(),  # type: ignore[arg-type]
        dataset="cities",
        texts=tuple(f"Sentence {i} about a city" for i in range(12)),
        labels=("Paris", "Berlin", "Rome") * 4,
        pooling="last",
        projection="pca",
        k=5,
        candidate=BackendInfo(SPECS[1], "emulated", "cpu", "fp16"),
        layers=layers,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("studies")
    study: Study
    for study in (contrast(), geometry()):
        study.save(where)
    return where


def test_the_heatmap_of_a_contrast_reads_its_fields(reader: Reader, folder: Path) -> None:
    page = reader.open(folder / "contrast.html")
    heat = page.locator("svg.heat")
    assert heat.locator("text", has_text="≠").all_text_contents() == ["≠  France", "≠  Paris"]
    assert page.locator(HEAT_DATA).count() == 1
    heat.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    told = page.locator(TIP).inner_text()
    assert told.split("\n") == ["layer.0", "row 0, token 3 France | Germany (differs)", "4"]
    cells = page.locator("[id='layer.1'] td").all_text_contents()
    assert cells == ["0", "0", "0", "5", "6", "7", "8"]


def test_a_layer_is_picked_and_a_mark_says_its_sentence(reader: Reader, folder: Path) -> None:
    page = reader.open(folder / "geometry.html")
    panels = page.locator(".panel")
    assert panels.count() == 4
    seen = [panels.nth(i).is_visible() for i in range(4)]
    assert seen == [False, False, False, True], "the last layer, until another is picked"
    page.get_by_text("layer.0", exact=True).first.click()
    assert [panels.nth(i).is_visible() for i in range(4)] == [False, True, False, False]
    mark = panels.nth(1).locator("g.one").nth(4)
    mark.locator(".spot").hover()
    assert page.locator(TIP).inner_text() == "Berlin: Sentence 4 about a city"
    panels.nth(1).locator("g.one").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(TIP).inner_text() == "Berlin: Sentence 1 about a city"
    assert panels.nth(1).locator("[tabindex='0']").count() == 1, "one stop of the tab key"


def test_arrow_keys_walk_the_layers(reader: Reader, folder: Path) -> None:
    page = reader.open(folder / "geometry.html")
    page.locator("#pick-3").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".panel").nth(2).is_visible()


def test_a_displacement_is_a_line_with_a_hollow_end(reader: Reader, folder: Path) -> None:
    page = reader.open(folder / "geometry.html")
    panel = page.locator(".panel").nth(3)
    assert panel.locator("line.way").count() == panel.locator(".ring").count() == 12
    line = panel.locator("line.way").first
    assert float(line.get_attribute("x2") or 0) > float(line.get_attribute("x1") or 0)


@pytest.mark.parametrize("name", ["contrast", "geometry"])
def test_they_read_without_a_script(reader: Reader, folder: Path, name: str) -> None:
    page = reader.open(folder / f"{name}.html", java_script_enabled=False)
    assert page.locator("h1").is_visible()
    if name == "geometry":
        page.locator("label[for=pick-0]").click()
        assert page.locator(".panel").first.is_visible()
        assert page.locator(".panel").first.locator("title").count() == 12


@pytest.mark.parametrize("name", ["contrast", "geometry"])
def test_nothing_serious(reader: Reader, folder: Path, axe: str, name: str) -> None:
    page = reader.open(folder / f"{name}.html")
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
