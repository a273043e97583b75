"""Large results: small files, made with little work. Needs no browser."""

from __future__ import annotations

import cProfile
from pathlib import Path

from browser import pages
from driftwalk_reports import html


def test_many_layers_tokens_and_candidates(tmp_path: Path) -> None:
    reports = pages.family(4, blocks=64, width=512)
    assert all(len(report.layers) == 67 for report in reports)
    assert all(len(layer.tokens[0]) == 512 for layer in reports[0].layers if layer.tokens)
    with cProfile.Profile() as profile:
        pages.write_all(tmp_path / "out", reports)
    files = sorted((tmp_path / "out").rglob("*.html"))
    assert len(files) == 5
    # A second or so; counted in calls, since machines differ and may have other work.
    assert sum(entry.callcount for entry in profile.getstats()) < 8_000_000
    assert sum(file.stat().st_size for file in files) < 2_500_000


def test_one_candidate() -> None:
    report = pages.blamed(blocks=32, width=512, rows=1)
    assert len(html.render(report).encode()) < 1_600_000
