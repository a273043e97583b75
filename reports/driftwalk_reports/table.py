"""The layer table as CSV: a line per point, every number in full, for a spreadsheet or a script."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from driftwalk.jsonable import encode
from driftwalk.measure.metric_list import METRICS
from driftwalk.result import Report

from .door import renderer
from .numbers import ints
from .rows import FIRST, ROOT

COLUMNS = (
    *("point", "index", "module", "verdict", "allowed", "marks", "shape"),
    *("dtype_reference", "dtype_candidate"),
    *(metric.name for metric in METRICS),
    *("mismatched", "total", "nonfinite_reference", "nonfinite_candidate"),
    *("worst_index", "worst_reference", "worst_candidate"),
    *("tolerance_atol", "tolerance_rtol", "tolerance_scale", "tolerance_needed"),
    *("tolerance_k", "tolerance_norm"),
    *("truth_reference", "truth_candidate", "truth_yardstick", "truth_ratio", "truth_closer"),
    *("blame_introduced", "blame_inherited", "blame_gain", "blame_ratio", "blame_guilty"),
    "note",
    *("format_cost", "format_kernel", "format_total", "format_snr_db"),
)
"""As result.json has them, joined by `_`; those of metrics stand alone."""

# The first character that makes a spreadsheet read a cell as a formula, full-width forms too.
_FORMULA = tuple("=+-@\t\r＝＋－＠")  # noqa: RUF001


@renderer
def render(report: Report) -> str:
    """A header, then the points in order of execution; empty where a number is not known."""
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(COLUMNS)
    marked = {FIRST: report.first_divergence, ROOT: report.root_cause}
    for layer in report.layers:
        data = encode(replace(layer, tokens=None))
        data["dtype"] = data.pop("dtypes")
        data |= data.pop("metrics") or {}
        data["marks"] = "; ".join(mark for mark, at in marked.items() if at is layer)
        data["format"] = _costs(report, layer.point.name)
        cells = dict(_flat(data))
        lines.writerow(_written(cells.get(name)) for name in COLUMNS)
    return file.getvalue()


def _costs(report: Report, point: str) -> dict[str, Any]:
    """The two parts of a quantised candidate's error; nothing where they are not known."""
    cost = report.format.layers.get(point) if report.format is not None else None
    data: dict[str, Any] = {} if cost is None else encode(cost)
    return data | {"cost": data["format"]} if data else {}


def _flat(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}_")
        else:
            yield f"{before}{key}", value


def _written(cell: Any) -> str:
    """A number in full; foreign text such that no spreadsheet takes it for a formula."""
    if cell is None:
        return ""
    if isinstance(cell, list | tuple):
        return ints(cell)
    if isinstance(cell, str):
        formula = cell.lstrip().startswith(_FORMULA) and cell != "-inf"
        return f"'{cell}" if formula else cell
    return str(cell).lower()
