"""The pictures docs/img/study-visibility-*, study-propagation-* and study-patching-*.

PYTHONPATH=harness:backends:reports:tests python3 tests/browser/visibility_screenshots.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright

import driftwalk
from browser.chromium import OPTIONS, find
from driftwalk_backends.demo import decoder

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
TEXT = "It is done, and submitted. You can play"


def broken() -> Any:
    """The MLP of layer 3 turned round, and too loud."""
    model: Any = decoder()
    with torch.no_grad():
        model.transformer.h[3].mlp.c_proj.weight *= -8
    return model


def main() -> None:
    typed = f"driftwalk visibility demo:decoder --text '{TEXT}' --layer 3 --position 10"
    seen = driftwalk.visibility("demo:decoder", TEXT, layer=3, position=10, command=typed)
    report = driftwalk.verify(
        "demo:decoder", candidate=broken(), probe=TEXT, propagation=True, patch=True
    )
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        seen.save(folder)
        report.save(folder)
        browser = playwright.chromium.launch(executable_path=find(), args=list(OPTIONS))
        for scheme in ("light", "dark"):
            size = {"width": 1280, "height": 1250}
            context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
            tab = context.new_page()
            tab.goto((folder / "visibility.html").as_uri())
            tab.screenshot(path=IMAGES / f"study-visibility-{scheme}.png")
            tab.goto((folder / "report.html").as_uri())
            for part, picture in (("carried", "propagation"), ("restored", "patching")):
                path = IMAGES / f"study-{picture}-{scheme}.png"
                tab.locator(f"#page-{part}").screenshot(path=path)
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
