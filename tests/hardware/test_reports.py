"""Text, Markdown and page of a hardware check: pure functions of the result."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from driftwalk.document import from_dict, read, to_dict, to_json
from driftwalk.errors import UsageError
from driftwalk.tasks.hardware.result import (
    Case,
    Cell,
    Check,
    HardwareReport,
    Reading,
)
from driftwalk_reports.hardware import render, render_markdown, render_page, timeline
from driftwalk_reports.schema import load_schema

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schemas")


def test_json_there_and_back(clean: HardwareReport, faulty: HardwareReport) -> None:
    for report in (clean, faulty):
        document = json.loads(to_json(report))
        jsonschema.validate(document, load_schema(kind="hardware"))
        assert from_dict(document) == report
        assert document["devices"][0]["verdict"] == report.devices[0].verdict


def test_what_is_no_hardware_check_is_refused(clean: HardwareReport) -> None:
    data = to_dict(clean)
    with pytest.raises(UsageError, match="kind"):
        read(HardwareReport, {**data, "kind": "bench"})
    with pytest.raises(UsageError, match="Upgrade"):
        from_dict({**data, "schema_version": 2})
    with pytest.raises(UsageError, match="verdict"):
        from_dict({**data, "verdict": "healthy"})


def test_neither_true_nor_false(clean: HardwareReport) -> None:
    with pytest.raises(TypeError, match="ok"):
        bool(clean)
    assert clean.ok
    cut = replace(clean, complete=False)
    assert cut.exit_code == 130
    assert replace(cut, verdict="fault").exit_code == 1
    assert replace(clean, verdict="not comparable").exit_code == 3


def test_the_terminal_ends_with_the_verdict(clean: HardwareReport, faulty: HardwareReport) -> None:
    assert render(clean).strip().splitlines()[-1] == "✓ No fault found on cpu."
    shown = render(faulty)
    assert shown.startswith("!! A FAULT WAS INJECTED ON PURPOSE")
    assert "element 5 [0, 0, 5], bit(s) 3" in shown


def test_markdown_tells_the_same(faulty: HardwareReport) -> None:
    shown = render_markdown(faulty)
    assert "✗ fault" in shown
    assert "bit(s) 3" in shown
    assert "FAULT WAS INJECTED" in shown


class Tags(HTMLParser):
    """The tags of a page, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href") and v != "data:,"]


def test_the_page_is_whole_and_alone(clean: HardwareReport, faulty: HardwareReport) -> None:
    for report in (clean, faulty):
        seen = Tags()
        seen.feed(render_page(report))
        assert seen.links == []
        assert seen.tags.count("svg") == 1
        assert "h1" in seen.tags
    shown = render_page(faulty)
    assert "A fault was injected on purpose" in shown
    assert "✗<title>model fp32, repeat 1: layer.2</title>" in shown


def test_hostile_names_stay_text(clean: HardwareReport) -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    device = clean.devices[0]
    wicked = replace(
        clean,
        reason=evil,
        injected=evil,
        command=evil,
        environment={evil: evil},
        devices=(
            replace(
                device,
                device=evil,
                identity={evil: evil},
                notes=(evil,),
                checks=(
                    Check(
                        evil, "fault", evil, (Case(evil, "fault", note=evil),), (),
                        (Cell(evil, evil, "broken", note=evil),),
                    ),
                    Check("invariance", "fault", evil, (), (), (Cell(evil, evil, "broken"),)),
                ),
                readings=(Reading(0.0, evil, {evil: 1.0}, (evil,)),),
            ),
        ),
    )  # fmt: skip
    shown = render_page(wicked)
    assert "<script>alert" not in shown
    for made in (shown, render(wicked), render_markdown(wicked)):
        assert "\x1b" not in made
    assert "<script>" not in render_markdown(wicked)


def test_the_timeline_shows_sensors_and_what_differs(faulty: HardwareReport) -> None:
    readings = tuple(
        Reading(float(at), "load", {"temperature": 40.0 + at, "power": 100.0}) for at in range(9)
    )
    drawn = timeline(replace(faulty.devices[0], readings=readings))
    assert drawn is not None
    assert [sensor.name for sensor in drawn.sensors] == ["temperature (°C)", "power (W)"]
    assert (drawn.sensors[0].low, drawn.sensors[0].high) == ("40", "48")
    assert sum(len(lane.wrong) for lane in drawn.lanes) == 1
    assert timeline(replace(faulty.devices[0], rounds=())) is None
