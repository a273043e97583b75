"""Large results: small files, made quickly. Needs no browser."""

from __future__ import annotations

import time
from pathlib import Path

from browser import pages
from driftwalk_reports import html


def test_many_layers_tokens_and_candidates(tmp_path: Path) -> None:
    reports = pages.family(4, blocks=64, width=512)
    assert all(len(report.layers) == 67 for report in reports)
    assert all(len(layer.tokens[0]) == 512 for layer in reports[0].layers if layer.tokens)
    start = time.perf_counter()
    pages.write_all(tmp_path / "out", reports)
    took = time.perf_counter() - start
    files = sorted((tmp_path / "out").rglob("*.html"))
    assert len(files) == 5
    assert took < 5
    assert sum(file.stat().st_size for file in files) < 2_500_000


def test_one_candidate() -> None:
    report = pages.blamed(blocks=32, width=512, rows=1)
    assert len(html.render(report).encode()) < 1_600_000
