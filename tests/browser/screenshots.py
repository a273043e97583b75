"""The pictures of docs/img: a passing, a drifting and a NaN report, light and dark, at 1280 px.

PYTHONPATH=harness:backends:reports:tests python3 tests/browser/screenshots.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

import driftwalk
from browser.chromium import OPTIONS, find
from driftwalk_backends.demo import decoder, faulty_decoder

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
PROMPTS = ["The capital of France is Paris.", "Drift walks from layer to layer."]
HEIGHT = 1700


def with_nan() -> torch.nn.Module:
    """One weight of layer 4 is NaN."""
    model = decoder()
    with torch.no_grad():
        model.transformer.h[4].mlp.c_fc.weight[3, 5] = float("nan")
    return model


def reports() -> dict[str, driftwalk.Report]:
    def run(candidate: object, command: str = "") -> driftwalk.Report:
        return driftwalk.verify("demo:decoder", candidate=candidate, probe=PROMPTS, command=command)

    return {
        "pass": run("onnxruntime", "driftwalk demo"),
        "drift": run(faulty_decoder(3), "driftwalk demo --fault 3"),
        "nan": run(with_nan()),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(OPTIONS))
        for name, report in reports().items():
            page = report.save(Path(folder) / name) / "report.html"
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": 1280, "height": HEIGHT}, color_scheme=scheme
                )
                tab = context.new_page()
                tab.goto(page.as_uri())
                tab.screenshot(path=IMAGES / f"report-{name}-{scheme}.png")
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
