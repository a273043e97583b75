"""The fleet's page: readable by all, in both colour schemes, and harmless whatever nodes say."""

from __future__ import annotations

from pathlib import Path

from browser.reader import Reader
from browser.test_accessibility import COLOURS, EVERYTHING, axe, serious
from driftwalk_reports.fleet import render_page as render
from fleet import samples

__all__ = ["axe"]  # a fixture


def test_the_page_of_a_fleet(reader: Reader, axe: str, tmp_path: Path) -> None:
    for name in ("troubled", "hostile"):
        path = tmp_path / f"{name}.html"
        path.write_text(render(getattr(samples, name)()), "utf-8")
        page = reader.open(path)
        page.evaluate(axe)
        for scheme, options in (("light", EVERYTHING), ("dark", COLOURS)):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert serious(page, options) == []
        page.set_viewport_size({"width": 360, "height": 800})
        wide = "document.documentElement.scrollWidth <= window.innerWidth"
        assert page.evaluate(wide), "the table scrolls, not the page"
