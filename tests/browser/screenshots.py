"""The pictures of docs/img: each kind of page, light and dark at 1280 px, and light at 400 px.

PYTHONPATH=harness:backends:reports:tests python3 tests/browser/screenshots.py [KIND ...]

Kinds are those of `KINDS`, all by default. `smollm2` needs a folder with SmolLM2-135M, named by
DRIFTWALK_SMOLLM2. With DRIFTWALK_RESULTS, results are also kept there, as NAME.json.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from playwright.sync_api import sync_playwright

import decoders
import driftwalk
from backends.test_real_models import MINILM, folder_of
from browser.chromium import OPTIONS, find
from driftwalk.bench import bench
from driftwalk_backends.demo import decoder, faulty_decoder
from driftwalk_reports import index
from nets import residual, spoilt, weights

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
PROMPTS = ["The capital of France is Paris.", "Drift walks from layer to layer."]
SCREENS = {"light": (1280, 1700), "dark": (1280, 1700), "400": (400, 1700)}
COLOURS = 256
Made = driftwalk.Report


def named(report: Made, label: str, command: str) -> Made:
    """A report without the paths of the machine that made it."""
    return replace(report, model={**report.model, "label": label}, command=command)


def demo(candidate: object, command: str = "") -> Made:
    return driftwalk.verify("demo:decoder", candidate=candidate, probe=PROMPTS, command=command)


def with_nan() -> torch.nn.Module:
    """One weight of layer 4 is NaN."""
    model = decoder()
    with torch.no_grad():
        model.transformer.h[4].mlp.c_fc.weight[3, 5] = float("nan")
    return model


@cache
def passing() -> Made:
    return demo("onnxruntime", "driftwalk demo")


@cache
def drifting() -> Made:
    return demo(faulty_decoder(3), "driftwalk demo --fault 3")


@cache
def int8() -> Made:
    spec = "onnxruntime,quantize=dynamic-int8"
    found = driftwalk.verify(folder_of(*MINILM[:2]), candidate=spec, probe=PROMPTS)
    return named(found, "all-MiniLM-L6-v2", f"driftwalk verify all-MiniLM-L6-v2 -c {spec}")


def smollm2() -> Made:
    folder = os.environ.get("DRIFTWALK_SMOLLM2")
    if not folder:
        sys.exit("DRIFTWALK_SMOLLM2 does not name a folder with SmolLM2-135M.")
    found = driftwalk.verify(folder, candidate="emulated:bf16", probe=PROMPTS[0])
    return named(found, "SmolLM2-135M", "driftwalk verify SmolLM2-135M -c emulated:bf16")


def graphs() -> Made:
    """Two .onnx files; one weight of the second is another."""
    with tempfile.TemporaryDirectory() as folder:
        a = residual(Path(folder) / "a.onnx")
        b = residual(Path(folder) / "b.onnx", spoilt(weights(), "w1"))
        found = driftwalk.verify(str(a), f'onnxruntime,file="{b}"')
    spec = "onnxruntime,file=b.onnx"
    found = replace(found, candidate=replace(found.candidate, spec=spec))
    return named(found, "a.onnx", f"driftwalk verify a.onnx -c {spec}")


def saved(make: Callable[[], Made]) -> Callable[[Path], Path]:
    def save(folder: Path) -> Path:
        return make().save(folder) / "report.html"

    return save


def bench_page(folder: Path) -> Path:
    specs = ["torch", "onnxruntime", "emulated:bf16"]
    found = bench(str(folder_of(*MINILM[:2])), specs, rounds=40)
    command = "driftwalk bench all-MiniLM-L6-v2 " + " ".join(f"-b {spec}" for spec in specs)
    found = replace(found, model={"label": "all-MiniLM-L6-v2"}, command=command)
    return found.save(folder) / "bench.html"


def generation_page(folder: Path) -> Path:
    """A slot of layer 2's cache that holds the keys of the token before it."""
    model = decoders.build("llama")
    port = decoders.broken(model, decoders.stale_slot)
    given = decoders.prompt("llama")
    found = driftwalk.generate(model, candidate=port, prompt=given, steps=14, invariance=True)
    found = replace(found, model={**found.model, "label": "tiny Llama"})
    return found.save(folder) / "generation.html"


def index_page(folder: Path) -> Path:
    reports = [passing(), demo("emulated:bf16"), drifting(), int8()]
    entries = [(f"{at:02d}/report.html", report) for at, report in enumerate(reports, 1)]
    path = folder / "index.html"
    path.write_text(index.render(entries), "utf-8")
    return path


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "report-pass": saved(passing),
    "report-drift": saved(drifting),
    "report-nan": saved(lambda: demo(with_nan())),
    "report-smollm2": saved(smollm2),
    "report-graphs": saved(graphs),
    "report-int8": saved(int8),
    "bench": bench_page,
    "index": index_page,
    "generation": generation_page,
}


def main(kinds: list[str]) -> None:
    kept = os.environ.get("DRIFTWALK_RESULTS")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find(), args=list(OPTIONS))
        for kind in kinds or KINDS:
            place = Path(folder) / kind
            place.mkdir()
            page = KINDS[kind](place)
            result = place / "result.json"
            if kept and result.exists():
                (Path(kept) / f"{kind}.json").write_bytes(result.read_bytes())
            for screen, (width, height) in SCREENS.items():
                scheme = "dark" if screen == "dark" else "light"
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    color_scheme=scheme,  # type: ignore[arg-type]
                )
                tab = context.new_page()
                tab.goto(page.as_uri())
                # A page that is shorter than the screen is not shown with an empty end.
                end = tab.evaluate(
                    "document.querySelector('footer').getBoundingClientRect().bottom"
                )
                tab.set_viewport_size({"width": width, "height": min(height, int(end) + 20)})
                shot = place / f"{screen}.png"
                tab.screenshot(path=shot)
                reduced(shot, IMAGES / f"{kind}-{screen}.png")
                context.close()
        browser.close()


def reduced(shot: Path, path: Path) -> None:
    """The picture in few colours: a third of the bytes, and no difference to be seen."""
    with Image.open(shot) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
