"""What a fleet report says: names, counts, exit codes; the same in every format; harmless."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from driftwalk.document import from_dict, to_dict, to_json
from driftwalk.errors import UsageError
from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.result import Attempt, FleetReport
from driftwalk.tasks.fleet.run import put_together
from driftwalk_reports.door import safe
from driftwalk_reports.fleet import headline, look, render, render_markdown
from driftwalk_reports.fleet import render_page as page
from driftwalk_reports.fleet_live import Lines, LiveTable
from driftwalk_reports.schema import load_schema
from fleet import samples

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")

ALL = [samples.clean, samples.troubled, samples.split, samples.hostile, samples.sharded]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_json(make: object) -> None:
    report: FleetReport = make()  # type: ignore[operator]
    document = json.loads(to_json(report))
    jsonschema.validate(document, load_schema(1, "fleet"))
    assert from_dict(document) == report
    assert (document["verdict"], document["exit_code"]) == (report.verdict, report.exit_code)


@pytest.mark.parametrize("data", [{}, [], {"kind": "hardware"}, {"kind": "fleet"}])
def test_what_is_no_fleet_result_is_said(data: object) -> None:
    with pytest.raises(UsageError):
        from_dict(data)
    with pytest.raises(UsageError, match="schema version 2"):
        from_dict({**to_dict(samples.clean()), "schema_version": 2})


def test_exit_codes() -> None:
    clean, one = samples.clean(), samples.device("x")
    assert clean.exit_code == 0
    assert samples.troubled().exit_code == samples.split().exit_code == 1
    assert replace(clean, records=(*clean.records, samples.lost("x"))).exit_code == 3
    assert replace(clean, complete=False).exit_code == 3
    assert put_together([], "hwcheck", "nowhere").exit_code == 3
    assert put_together([one], "hwcheck", "here").exit_code == 0
    faulty = samples.device("x", faulty=True)
    assert put_together([faulty, samples.lost("y")], "hwcheck", "here").exit_code == 1


def test_who_is_wrong() -> None:
    assert samples.troubled().wrong == ("node-5 cuda:0", "node-6 cuda:0")
    assert samples.split().wrong == (), "which of two is wrong cannot be said"
    assert samples.sharded().wrong == (), "drift is not the node's fault"


def test_headlines() -> None:
    assert headline(samples.clean()) == "NO FAULT FOUND on 4 devices of 4 nodes."
    assert headline(samples.troubled()) == (
        "FAULT: node-5 cuda:0, node-6 cuda:0 compute wrongly (2 of 8 devices). "
        "Could not be told: node-7 cuda:0 (lost)."
    )
    assert "which is wrong cannot be said: a cuda:0 against b cuda:0" in headline(samples.split())
    assert headline(samples.sharded()).startswith("DRIFT in 1 of 3 jobs: gpt2 on torch:cpu:fp16.")
    only_lost = put_together([samples.lost("a"), samples.device("b")], "hwcheck", "")
    assert headline(only_lost).startswith("NOT CHECKED: Could not be told: a cuda:0 (lost).")
    assert "No fault was found on the other 1." in headline(only_lost)


def test_the_matrix_shows_what_only_the_others_see() -> None:
    view = look(samples.troubled())
    lines = {line.name: line for line in view.lines}
    assert view.columns[-1] == "same bits"
    odd, own = lines["node-6 cuda:0"], lines["node-5 cuda:0"]
    assert (odd.verdict.word, odd.verdict.tone) == ("other bits", "drift")
    assert odd.fields[-1] is not None
    assert "layer.1" in odd.fields[-1].detail
    assert own.verdict.word == "fault"
    assert [field is None for field in lines["node-7 cuda:0"].fields] == [True] * 6
    assert dict(view.about)["jobs"] == "5 no fault found, 2 fault, 1 could not be told"
    assert [key for key, _ in view.groups] == ["driver"]


@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_every_format_says_the_same(make: object) -> None:
    report: FleetReport = make()  # type: ignore[operator]
    view = look(safe(report))
    text = render(report)
    assert text.splitlines()[-1].endswith(view.headline)
    assert "\x1b" not in text
    assert "\x1b[" in render(samples.troubled(), color=True)
    html = page(report)
    assert "<script>alert" not in html
    assert html.count("<script>") == 1
    marked = (
        MarkdownIt("commonmark", {"html": True}).enable("table").render(render_markdown(report))
    )
    assert "<script>" not in marked
    assert "href" not in marked
    for line in view.lines:
        if make is not samples.hostile:
            assert line.name in text
            assert line.name in html


def test_links_lead_below_the_folder_only() -> None:
    report = samples.clean()
    pages = ["jobs/ab12.html", "javascript:alert(1)//.html", "//evil/x.html", "http://x/y.html"]
    records = [replace(r, page=p) for r, p in zip(report.records, pages, strict=True)]
    view = look(replace(report, records=tuple(records)))
    assert [line.href for line in view.lines] == ["jobs/ab12.html", "", "", ""]


class Screen:
    """Where a live table is drawn."""

    shown: object = None

    def update(self, drawn: object, refresh: bool) -> None:
        self.shown = drawn


def drawn(table: LiveTable) -> str:
    from rich.console import Console

    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(table.drawn())
    return captured.get()


def test_live() -> None:
    """What runs, what failed and what is done can be told apart, and time goes on."""
    now = [0.0]
    screen = Screen()
    table = LiveTable(screen, clock=lambda: now[0])
    jobs = [Job("verify", (name,), name) for name in ("one", "two", "three")]
    place = Place("node-1", "cpu")
    report = samples.sharded()
    done = replace(report.records[0], id=jobs[0].id, job=jobs[0])
    table.expect(jobs, [done], [place])
    table.started(jobs[1], place)
    now[0] = 12.0
    table.tick()
    assert screen.shown is not None
    assert "12 s" in drawn(table)
    assert "1 of 3 jobs have ended" in drawn(table)
    table.failed(jobs[1], Attempt(place.name, "timeout", "no result after 9 s"), again=True)
    assert "timeout: no result after 9 s" in drawn(table)
    assert "waiting" in drawn(table)


def test_lines_for_a_log() -> None:
    said: list[str] = []
    lines = Lines(said.append)
    report = samples.troubled()
    lines.expect([r.job for r in report.records], [], [Place("n", "cpu")])
    lines.failed(report.records[7].job, report.records[7].attempts[0], again=False)
    for record in report.records:
        lines.ended(record)
    assert said[0] == "8 jobs; 1 place to run them."
    assert said[1] == "node-7 cuda:0: lost: The actor died: its node was terminated."
    assert said[2] == "[1/8] ✓ node-0 cuda:0: pass (41.3 s)"
    assert said[-1].startswith("[8/8] ? node-7 cuda:0: lost")
