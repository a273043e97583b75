"""The layer table as CSV: a line per point, every number in full, for a spreadsheet or a script."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator

from driftwalk.layer_drift import LayerDrift
from driftwalk.measure.metric_list import METRICS
from driftwalk.result import Report

from .door import renderer
from .numbers import ints
from .rows import FIRST, ROOT

Cell = str | float | int | bool | None

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
        marks = [mark for mark, at in marked.items() if at is layer]
        cells = dict(_cells(layer, marks))
        lines.writerow(_written(cells.get(name)) for name in COLUMNS)
    return file.getvalue()


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
)


def _cells(layer: LayerDrift, marks: Iterable[str]) -> Iterator[tuple[str, Cell]]:
    """What is known of a point, by column."""
    yield "point", layer.point.name
    yield "index", layer.index
    yield "module", layer.point.module
    yield "verdict", layer.verdict
    yield "allowed", layer.allowed
    yield "marks", "; ".join(marks)
    yield "shape", ints(layer.shape)
    yield "dtype_reference", layer.dtypes.reference
    yield "dtype_candidate", layer.dtypes.candidate
    if layer.metrics is not None:
        found = layer.metrics
        yield from ((name, value) for name, value in vars(found).items() if name in COLUMNS)
        yield "nonfinite_reference", found.nonfinite.reference
        yield "nonfinite_candidate", found.nonfinite.candidate
        if found.worst is not None:
            yield "worst_index", ints(found.worst.index)
            yield "worst_reference", found.worst.reference
            yield "worst_candidate", found.worst.candidate
    for part in ("tolerance", "truth", "blame"):
        told = getattr(layer, part)
        for name, value in vars(told).items() if told is not None else ():
            yield f"{part}_{name}", value
    yield "note", layer.note


def _written(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, int):
        return str(cell)
    return repr(float(cell)) if isinstance(cell, float) else _text(cell)


def _text(text: str) -> str:
    """Foreign text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
