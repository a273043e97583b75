"""axe-core, bundled with its Python package, finds nothing serious on any kind of page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from browser import chromium
from browser.reader import Reader

if TYPE_CHECKING:
    from playwright.sync_api import Page

EVERYTHING: dict[str, Any] = {"resultTypes": ["violations"]}
COLOURS = EVERYTHING | {"runOnly": ["color-contrast", "link-in-text-block"]}
"""All that another colour scheme can change."""


def serious(page: Page, options: dict[str, Any]) -> list[str]:
    """What axe-core calls serious or worse: rule, impact, where, and what to do."""
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{rule['id']} ({rule['impact']}, {len(rule['nodes'])} times) "
        f"at {' '.join(map(str, node['target']))}: {' '.join(node['failureSummary'].split())}"
        for rule in found["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"][:3]
    ]


@pytest.fixture(scope="session")
def axe() -> str:
    """The script; it is put into a page as its debugger would, whatever the page's policy."""
    try:
        from axe_playwright_python.base import AXE_SCRIPT
    except ImportError:
        chromium.unavailable("axe-playwright-python is not installed")
    return str(AXE_SCRIPT)


KINDS = ["pass", "small", "nan", "unverified", "index", "real-drift"]
KINDS += ["real-graphs", "real-int8", "real-smollm2", "costly", "misstored"]


@pytest.mark.parametrize("case", KINDS)
def test_nothing_serious(reader: Reader, index_page: Path, axe: str, case: str) -> None:
    page = reader.open(index_page if case == "index" else case)
    page.evaluate(axe)
    told = {}
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            told[width, scheme] = serious(page, EVERYTHING if scheme == "light" else COLOURS)
    wrong = {where: lines for where, lines in told.items() if lines}
    assert not wrong, "\n".join(f"{at}: {line}" for at, lines in wrong.items() for line in lines)
