"""The page of every kind of result, plain and with hostile texts: readable by all, and harmless."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.reader import Reader
from browser.test_accessibility import COLOURS, EVERYTHING, axe, serious
from documents.hostile import ATTACKS, poisoned
from documents.stored import STORED, name_of
from driftwalk.document import KINDS, load

__all__ = ["axe"]  # a fixture

PAGES = [path for path in STORED if path.stem not in ("job", "drift", "nan", "pass")]


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_the_page_of_a_kind(
    reader: Reader, axe: str, tmp_path: Path, path: Path, hostile: bool
) -> None:
    document = load(path)
    if hostile:
        made = poisoned(document, lambda text: f"{text}{' '.join(ATTACKS.values())}")
        assert made is not None
        document = made
    file = document.save(tmp_path, ["html"]) / KINDS[document.kind].formats["html"][0]
    page = reader.open(file)
    page.evaluate(axe)
    for scheme, options in (("light", EVERYTHING), ("dark", COLOURS)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert serious(page, options) == []
    page.set_viewport_size({"width": 360, "height": 800})
    wide = "document.documentElement.scrollWidth <= window.innerWidth"
    assert page.evaluate(wide), "a table scrolls, not the page"
