"""The page of a hardware check: readable for everybody, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser.reader import Reader
from browser.test_accessibility import COLOURS, EVERYTHING, axe, serious
from driftwalk.result import Tool
from driftwalk.tasks.hardware.result import (
    Case,
    Cell,
    Check,
    DeviceResult,
    Flip,
    HardwareReport,
    Mismatch,
    Reading,
    Round,
)
from driftwalk_reports.hardware import render_page as render

__all__ = ["axe"]


def report() -> HardwareReport:
    flip = Flip(5, (0, 0, 5), (3,), -1.6850266, -1.6850276, "bfd7aef4", "bfd7aefc")
    found = Mismatch("repeat", "model fp16", "layer.2", 7, 3.1, 1, 2048, (flip,), None, "")
    cases = (Case("model fp16", "fault", 20), Case("fp8", "not comparable", note="not here"))
    cells = (
        Cell("batch of 8", "fp16", "bit-exact"),
        Cell("padding left 7", "fp16", "within noise", {}, "logits", 0.2),
        Cell("prefix", "fp16", "broken", {}, "norm", 9.0, True, "in float64 too"),
        Cell("threads", "fp16", "not run"),
    )
    device = DeviceResult(
        "cuda:0",
        {"model": "some GPU", "torch": "2.13"},
        (
            Check("repeat", "fault", "1 of 20 runs differ.", cases, (found,), (), 3.0),
            Check("load", "no fault found", "The same bits.", (), (), (), 6.0),
            Check("invariance", "not comparable", "Broken.", (), (), cells, 2.0),
        ),
        {},
        tuple(Round("repeat", "model fp16", n, n / 2, 0.1, n != 7) for n in range(20)),
        tuple(
            Reading(float(n), "load", {"temperature": 40.0 + n, "power": 90.0}) for n in range(9)
        ),
    )
    return HardwareReport(
        tool=Tool("driftwalk", "0.1.0"), created="2026-01-02T03:04:05Z", level="quick",
        command="driftwalk hwcheck --device cuda", verdict="fault",
        reason="Fault: cuda:0, repeat: layer.2 in model fp16.", devices=(device,),
        injected="state=layer.2", complete=False, environment={"python": "3.11"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def hardware_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hardware") / "hwcheck.html"
    file.write_text(render(report()), encoding="utf-8")
    return file


def test_nothing_serious(reader: Reader, hardware_page: Path, axe: str) -> None:
    page = reader.open(hardware_page)
    page.evaluate(axe)
    page.evaluate("document.querySelectorAll('details').forEach(item => item.open = true)")
    told = {}
    for width in (1280, 360):
        page.set_viewport_size({"width": width, "height": 800})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            told[width, scheme] = serious(page, EVERYTHING if scheme == "light" else COLOURS)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "the page itself must not scroll sideways"
    wrong = {where: lines for where, lines in told.items() if lines}
    assert not wrong, "\n".join(f"{at}: {line}" for at, lines in wrong.items() for line in lines)
