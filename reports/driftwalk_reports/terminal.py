"""A result on a terminal: what was found where, what is marked in full, the sentence last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from driftwalk.measure.metric_list import METRICS
from driftwalk.result import Report

from .console import plain_console, printed
from .door import renderer
from .fitting import fit, wrapped
from .numbers import cut, number
from .rows import Fact, Gap, Row, short
from .tree import tree
from .tree_text import draw, marks
from .view import View, look

MOST_ROWS = 60
_BARS = "▁▂▃▄▅▆▇█"
_STYLES = {"pass": "bold green", "drift": "bold red", "unverified": "bold yellow"}


@renderer
def render(report: Report, width: int | None = None, color: bool = False) -> str:
    """The report as text; ANSI colours only where asked for."""
    view, console = look(report), plain_console(width, color)
    return printed(console, _parts(view, report, console), _headline(view))


def _headline(view: View) -> Text:
    return Text(f"{view.symbol} {view.headline}", style=_STYLES[view.verdict])


def _parts(view: View, report: Report, console: Console) -> Iterator[RenderableType]:
    marked = [row for row in view.rows if row.marks]
    yield _about(view)
    if marked:
        yield Text()
        yield from draw(tree(view.rows, _remark(report)), console.width)
        yield Text()
    elif view.rows:
        yield _table(view, console)
    yield from _sparkline(view.rows, console.width)
    yield Text()
    for row in marked:
        yield from _details(row, console.width)
    paragraphs = list(view.said)
    uneven = any(row.verdict in ("missing", "extra") for row in view.rows)
    if uneven or report.coverage.outputs_skipped:
        paragraphs.insert(0, view.coverage)
    paragraphs.append(" ".join(view.exercised))
    paragraphs += [f"Note: {note}" for note in view.notes]
    shown = [Text(paragraph) for paragraph in paragraphs if paragraph]
    yield from shown
    if shown:
        yield Text()


def _about(view: View) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in view.about:
        grid.add_row(Text(label), Text(value))
    return grid


def _table(view: View, console: Console) -> Table:
    """The widest table that fits: a narrow one leaves out columns before it cuts a verdict."""
    columns = ["rel L2", "max abs", "allowance", "used"]
    columns += ["of contrast"] if view.meaning else []
    wide = console.options.update(max_width=10_000)
    table = _table_of(view, columns, console.width)
    for dropped in ("allowance", "max abs", "rel L2"):
        if Measurement.get(console, wide, table).maximum <= console.width:
            break
        columns.remove(dropped)
        table = _table_of(view, columns, console.width)
    return table


def _table_of(view: View, columns: Sequence[str], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", overflow="fold", max_width=max(12, width - 56))
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in short(view.rows, MOST_ROWS):
        if isinstance(row, Gap):
            table.add_row(Text(f"… {row.count} more", style="dim"))
        else:
            values = {"rel L2": row.rel_l2, "max abs": row.max_abs}
            values |= {"allowance": row.allowance, "used": row.used, "of contrast": row.meaning}
            table.add_row(Text(row.name), *(Text(values[c]) for c in columns), _verdict(row))
    return table


def _remark(report: Report) -> Fact | None:
    """The culprit as a part of the root cause: what it is, and what it did."""
    found, root = report.culprit, report.root_cause
    if found is None or root is None:
        return None
    who, _, did = cut(found.sentence, 300).partition(": ")
    # `layer.3 mlp.c_proj` is seen from the layer; here it hangs below a point of any depth.
    part = who.replace(" ", ".", 1).removeprefix(root.point.name).lstrip(".")
    return part, did or who


_FACTS = (
    ("module", "shape", "dtypes"),
    ("not finite", *(metric.label for metric in METRICS)),
    ("mismatched", "worst at", "reference there", "candidate there", "allowed there"),
    ("allowance", "used", "would pass"),
)
"""Facts that share a line; every other has one of its own."""


def _details(row: Row, width: int) -> Iterator[Text]:
    """Everything known of one point, a few facts a line."""
    title = Text(f"{row.symbol} ", style="green" if row.ok else "red")
    yield title.append(fit(row.name, width - 12), style="bold").append(" in detail", style="dim")
    facts = dict(row.facts)
    for group in _FACTS:
        pieces = [f"{label} {facts.pop(label)}" for label in group if label in facts]
        yield from _indented(wrapped(pieces, " · ", width - 4))
    for label, value in facts.items():
        yield from _indented(wrapped(f"{label} {value}".split(" "), " ", width - 4))
    yield Text()


def _indented(lines: Iterable[str]) -> Iterator[Text]:
    """The first line less than those that go on."""
    for place, line in enumerate(lines):
        yield Text(f"{'    ' if place else '  '}{line}")


def _verdict(row: Row) -> Text:
    verdict = f"{row.verdict} (allowed)" if row.allowed else row.verdict
    text = Text(f"{row.symbol} {verdict}", style="green" if row.ok else "red")
    return text.append(marks(row), style="bold red")


def _sparkline(rows: Sequence[Row], width: int) -> Iterator[Text]:
    """Relative L2 per point on a log scale; a point without one shows its symbol."""
    errors = [row.error for row in rows if row.error and math.isfinite(row.error)]
    if not errors:
        return
    low, high = math.log10(min(errors)), math.log10(max(errors))
    # At least three decades, so that noise of one size does not look like a mountain range.
    slack = max(0.0, 3 - (high - low)) / 2
    low, high = low - slack, high + slack
    label = f"  rel L2, log scale: {number(min(errors))} to {number(max(errors))}"
    room = max(10, width - len(label))
    # Where there is no room for all, each character stands for the worst of a few points.
    step = math.ceil(len(rows) / room)
    line = Text()
    for start in range(0, len(rows), step):
        worst = max(rows[start : start + step], key=_badness)
        line.append(_bar(worst, low, high), style="green" if worst.ok else "red")
    yield line.append(label, style="dim")


def _badness(row: Row) -> tuple[bool, bool, float]:
    return (not row.ok, row.error is None, row.error or 0.0)


def _bar(row: Row, low: float, high: float) -> str:
    if row.error is None:
        return row.symbol
    if row.error == 0:
        return _BARS[0]
    if not math.isfinite(row.error):
        return _BARS[-1]
    part = (math.log10(row.error) - low) / (high - low)
    return _BARS[round(part * (len(_BARS) - 1))]
