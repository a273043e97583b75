"""Makes the pictures of docs/img/study-*: contrast and geometry, light and dark, at 1280 px.

PYTHONPATH=harness:backends:reports:tests python3 tests/browser/study_screenshots.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

import driftwalk
from backends.test_real_models import MINILM, folder_of
from browser.chromium import OPTIONS, find
from driftwalk.tasks.studies.results import Study
from studies import subjects

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
HEIGHTS = {"contrast": 1180, "geometry": 1280}


def studies() -> list[Study]:
    seen = driftwalk.contrast(
        subjects.gpt2(),
        subjects.probe(subjects.FRANCE),
        subjects.probe(subjects.GERMANY),
        candidate="emulated:fp16",
        command="driftwalk contrast gpt2 --candidate emulated:fp16",
    )
    found = driftwalk.geometry(
        folder_of(*MINILM[:2]),
        candidate="emulated:fp8",
        command="driftwalk geometry all-MiniLM-L6-v2 --candidate emulated:fp8",
    )
    return [
        replace(seen, model={"label": "GPT-2's architecture, 64 wide, random weights"}),
        replace(found, model={"label": "all-MiniLM-L6-v2"}),
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(OPTIONS))
        for study in studies():
            page = study.save(folder) / f"{study.kind}.html"
            for scheme in ("light", "dark"):
                size = {"width": 1280, "height": HEIGHTS[study.kind]}
                context = browser.new_context(viewport=size, color_scheme=scheme)
                tab = context.new_page()
                tab.goto(page.as_uri())
                if study.kind == "geometry":
                    tab.locator(".panel:visible g.one").nth(30).focus()
                tab.screenshot(path=IMAGES / f"study-{study.kind}-{scheme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
