"""JUnit XML: fits the schema that CI servers share, whatever the result holds."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from driftwalk.result import Report
from driftwalk_reports import junit
from unit.reports import cases

xmlschema = pytest.importorskip("xmlschema", reason="xmlschema reads the schema")

SCHEMA = Path(__file__).resolve().parents[2] / "data" / "junit.xsd"


@cache
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(SCHEMA)


def test_every_report_fits_the_common_schema(report: Report) -> None:
    schema().validate(junit.render(report))


@pytest.mark.parametrize("name", ["", "\ud800", "]]>", "\uffff\ufdd0", "\x85\u2028", "🜨"])
def test_any_name_fits_it(name: str) -> None:
    reference = {name: cases.states()["embed"]}
    report = cases.make(reference, {}, model=name, command=name, notes=(name,), modules="{}")
    schema().validate(junit.render(report))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<testsuite ", "<testsuite surprise='1' "),
        ('tests="9"', 'tests="nine"'),
        ('timestamp="2026-01-02T03:04:05"', 'timestamp="2026-01-02T03:04:05Z"'),
        (' type="drift"', ""),
        ("</properties>", "</properties><system-out/>"),
        ("<system-out>", "<output/><system-out>"),
    ],
)
def test_the_schema_refuses_what_servers_would_refuse(before: str, after: str) -> None:
    text = junit.render(cases.drifting())
    assert before in text
    assert schema().is_valid(text)
    assert not schema().is_valid(text.replace(before, after, 1))


@pytest.mark.parametrize(
    ("created", "timestamp"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05"),
        ("2026-01-02T03:04:05.678+02:00", "2026-01-02T01:04:05"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05"),
        ("0001-01-01T00:00:00+14:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_the_time_is_utc_without_an_offset(created: str, timestamp: str | None) -> None:
    text = junit.render(dataclasses.replace(cases.passing(), created=created))
    schema().validate(text)
    assert ("timestamp=" in text) == (timestamp is not None)
    assert timestamp is None or f'timestamp="{timestamp}"' in text
