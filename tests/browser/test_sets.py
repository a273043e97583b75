"""The page of a set of probes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from browser import pages
from browser.reader import Reader
from driftwalk.probe_set import ProbeRow, ProbeSet
from driftwalk_reports import html

REASON = (
    "the candidate gives other numbers in each run: at layer.1 they were beyond what is allowed "
    "when the probe was screened, and not when it was judged whole"
)


def test_a_long_reason_leaves_room_for_the_other_columns(reader: Reader, tmp_path: Path) -> None:
    found = (0.2, None, None, 1e-16, 0, "1 x 7", "0" * 64)
    rows = (
        ProbeRow(1, "probe 1", "unverified", *found, reason=REASON),
        ProbeRow(2, "probe 2", "pass", *found, screened=True),
    )
    told = ProbeSet("list", 2, 1, 0, 1, None, None, None, ("probe 1",), screened=1)
    path = tmp_path / "set.html"
    path.write_text(html.render(replace(pages.blamed(), probe_set=told, probes=rows)))
    page = reader.open(path)
    table = page.locator("#page-set table").last
    assert REASON in " ".join(table.inner_text().split())
    room = table.evaluate("table => table.parentElement.clientWidth - table.scrollWidth")
    assert room >= 0
    name = table.locator("tbody tr").last.locator("td").first
    assert name.evaluate("cell => cell.getClientRects()[0].height") < 80
