"""CSV: a line per point, every number back as it was, and no cell that a spreadsheet runs."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest

from driftwalk.document import KINDS
from driftwalk.result import Report
from driftwalk_reports import table
from unit.reports import cases


def read(report: Report) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.render(report), newline=""), strict=True))


def test_a_line_per_point_and_a_cell_per_column(report: Report) -> None:
    text = table.render(report)
    assert "\r" not in text
    assert text.endswith("\n")
    lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert lines[0] == list(table.COLUMNS)
    assert len(lines) == len(report.layers) + 1
    assert {len(line) for line in lines} == {len(table.COLUMNS)}


def test_numbers_come_back_as_they_were(report: Report) -> None:
    for line, layer in zip(read(report), report.layers, strict=True):
        if layer.metrics is None or layer.tolerance is None:
            assert line["max_abs"] == line["tolerance_needed"] == ""
            continue
        for name in ("max_abs", "rel_l2", "cosine", "snr_db", "ulp_max"):
            found, value = float(line[name]), getattr(layer.metrics, name)
            assert found == value or (math.isnan(found) and math.isnan(value)), name
        assert int(line["mismatched"]) == layer.metrics.mismatched
        assert float(line["tolerance_needed"]) == layer.tolerance.needed
        assert line["tolerance_k"] == ""


def test_what_is_not_finite_is_written_as_python_reads_it() -> None:
    worst = [line["worst_candidate"] for line in read(cases.nonfinite())]
    assert worst[3] == "nan"
    assert read(cases.bad_reference())[2]["worst_reference"] == "-inf"
    assert read(cases.exact())[0]["snr_db"] == "inf"


def test_verdicts_and_marks() -> None:
    lines = read(cases.blamed())
    assert [line["verdict"] for line in lines] == ["ok"] * 4 + ["drift"] * 5
    assert [line["marks"] for line in lines if line["marks"]] == ["root cause", "first divergence"]
    assert lines[4]["shape"] == "[2, 4, 16]"
    assert lines[4]["dtype_candidate"] == "fp32"
    allowed = read(cases.missing_allowed())
    assert [line["allowed"] for line in allowed] == ["true"] + ["false"] * 8


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t=", "\r=", " =", "＝", "＠"])  # noqa: RUF001
def test_no_cell_is_a_formula(start: str) -> None:
    name = f'{start}HYPERLINK("x";A1)'
    reference = {name: cases.states()["embed"]}
    (line,) = read(cases.make(reference, reference, modules="{}"))
    assert line["point"][0] in "'\\"
    assert line["module"] == line["point"]
    assert line["point"].endswith('HYPERLINK("x";A1)')


def test_quotes_commas_and_lines_stay_in_their_cell() -> None:
    name = 'a,"b"\n;c\x00\u2028'
    reference = {name: cases.states()["embed"]}
    (line,) = read(cases.make(reference, reference))
    assert line["point"] == 'a,"b"\\n;c\\x00\\u2028'


def test_every_column_and_every_file_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "reports.md").read_text("utf-8")
    formats = KINDS["result"].formats
    names = {*table.COLUMNS, *formats, *(file for file, _ in formats.values())}
    assert {name for name in names if f"`{name}`" not in page} == set()
