"""A result as JUnit XML: a point is a test case, so any CI server can show it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from xml.etree import ElementTree as ET

from driftwalk.result import ExpectedDrift, Report
from driftwalk.tasks.generation.result import Generation

from . import generation
from .door import renderer
from .format_words import beyond
from .generation import GenerationView
from .numbers import cut, number
from .rows import Row
from .view import View, look


@renderer
def render(report: Report) -> str:
    """One test suite; drift is a failure, a run that could not be verified an error."""
    view = look(report)
    said = view.coverage, " ".join(view.exercised), view.decisions, *view.observer
    said += (*view.format.wrong, *view.format.sentences) if view.format else ()
    if view.probes is not None:
        worst = (" ".join(map(str, row[:5])) for row in view.probes.worst)
        said += (view.probes.sentence, *worst, *view.probes.refused)
        said += (*view.probes.screened, *view.probes.coverage)
    return _rendered(report, view, view.rows, said)


@renderer
def render_generation(report: Generation) -> str:
    """The same of a generation: a point over all steps is a test case."""
    view = generation.look(report)
    most = {one.row.name: f"most in {one.most_in}" for one in view.points}
    return _rendered(report, view, [one.row for one in view.points], view.sentences, most)


def _rendered(
    report: Report | Generation,
    view: View | GenerationView,
    rows: Sequence[Row],
    said: Iterable[str],
    where: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A suite with a case for each row; `where` adds to what a failure says of a point."""
    told = {item.point: _known(item) for item in report.expected}
    known = {r.name: told[r.name] for r in rows if r.verdict == "drift" and r.name in told}
    costly = report.verdict == "drift" and isinstance(report, Report) and bool(beyond(report))
    # A verdict that no row explains must still turn the build red.
    silent = all(row.ok for row in rows) and not costly
    lost = view.tone == "unverified" or (view.tone == "drift" and silent)
    spent = (value for side in report.timings.values() for value in side.values())
    suite = ET.Element(
        "testsuite",
        _timestamp(report.created),
        name=f"driftwalk {view.model}",
        tests=str(len(rows) + lost + costly),
        failures=str(costly + sum(not row.ok and row.name not in known for row in rows)),
        errors=str(int(lost)),
        skipped=str(sum(row.allowed or row.name in known for row in rows)),
        time=f"{sum(value for value in spent if 0 <= value < math.inf):.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("headline", view.headline), *view.about, ("command", report.command)):
        ET.SubElement(properties, "property", name=name, value=value)
    if lost:
        case = _case(suite, view.model, "verdict")
        ET.SubElement(case, "error", message=view.headline, type=view.tone)
    for row in rows:
        case = _case(suite, view.model, row.name)
        _add_row(case, view.headline, row, known.get(row.name, ""), where.get(row.name, ""))
    if costly:
        case = _case(suite, view.model, "format")
        ET.SubElement(case, "failure", message=report.reason, type="format")
    ET.SubElement(suite, "system-out").text = "\n".join(
        line for line in (view.headline, *said) if line
    )
    root = ET.Element("testsuites", {k: suite.attrib[k] for k in ("tests", "failures", "errors")})
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, model: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"driftwalk.{model}", name=name)


def _add_row(case: ET.Element, headline: str, row: Row, known: str, where: str) -> None:
    if known or row.allowed:
        ET.SubElement(case, "skipped", message=known or row.sentence)
    elif not row.ok:
        marks = "".join(f" ({mark})" for mark in row.marks)
        message = f"{row.name}: {row.sentence}{marks}{f', {where}' if where else ''}"
        failure = ET.SubElement(case, "failure", message=message, type=row.verdict)
        facts = [f"{label}: {value}" for label, value in row.facts]
        # The run's own sentence goes with the failure that a reader meets first.
        failure.text = "\n".join(([headline] if row.marks else []) + facts)


def _known(item: ExpectedDrift) -> str:
    """Why a point that drifts turns no build red."""
    return (
        f"expected drift, {cut(item.metric, 40)} {number(item.found)} of {number(item.bound)} "
        f"known until {cut(item.expires, 40)}: {cut(item.reason, 300)}"
    )


def _timestamp(created: str) -> dict[str, str]:
    """UTC without an offset, to the second, as the common schema takes it; else no attribute."""
    try:
        when = datetime.fromisoformat(created)
        utc = when.astimezone(UTC) if when.tzinfo else when
    except (ValueError, OverflowError):
        return {}
    return {"timestamp": utc.replace(microsecond=0, tzinfo=None).isoformat()}
