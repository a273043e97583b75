"""A result on a terminal: what was found where, what is marked in full, the sentence last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from driftwalk.measure.metric_list import METRICS

from .console import about, fit, noted, table, text_renderer, wrapped
from .format_costs import LEGEND, STORED_HEAD, TITLE, CostView, as_sentence, few
from .numbers import number
from .probe_words import PERCENTILES, WORST, SetView
from .rows import Gap, Row, short
from .sentences import inside
from .tree import draw, marks, tree
from .view import View, look
from .vocabulary import FROM_TRUTH, has_truth, legend

MOST_ROWS = 60
MOST_COSTS = 30
NARROW = 62
"""Cells of a table of costs without bars."""
WIDE_ENOUGH = 90
"""For a table of how weights are stored."""
_BARS = "▁▂▃▄▅▆▇█"


def _parts(view: View, console: Console) -> Iterator[RenderableType]:
    marked = [row for row in view.rows if row.marks]
    yield about(view.about)
    columns: list[str] = []
    if marked:
        drawn = list(draw(tree(view.rows, inside(view.document)), console.width))
        columns = [FROM_TRUTH] if FROM_TRUTH in drawn[0].plain else []
        yield from (Text(), *drawn, Text())
    elif view.rows:
        points, columns = _table(view, console)
        yield points
    if text := legend(view.rows, columns, view.format is not None):
        yield Text(text, style="dim")
    yield from _sparkline(view.rows, console.width)
    for row in marked:
        yield Text()
        yield from _details(row, console.width)
    if view.format is not None:
        yield from _costs(view.format, console.width)
    if view.probes is not None:
        yield from _set(view.probes)
    paragraphs = [*view.said, *([" ".join(view.exercised)] if view.probes is None else [])]
    uneven = any(row.verdict in ("missing", "extra") for row in view.rows)
    if uneven or view.document.coverage.outputs_skipped:
        paragraphs.insert(0, view.coverage)
    shown = [*(Text(paragraph) for paragraph in paragraphs if paragraph), *noted(view.notes)]
    yield from [Text(), *shown] if shown else []


def _table(view: View, console: Console) -> tuple[Table, list[str]]:
    """The widest table that fits, and its columns: some go before a verdict is cut."""
    measure = FROM_TRUTH if has_truth(view.rows) else "allowance"
    columns = ["rel L2", "max abs", measure, "used"]
    columns += ["of contrast"] if view.meaning else []
    wide = console.options.update(max_width=10_000)
    made = _table_of(view, columns, console.width)
    for dropped in (measure, "max abs", "rel L2"):
        if Measurement.get(console, wide, made).maximum <= console.width:
            break
        columns.remove(dropped)
        made = _table_of(view, columns, console.width)
    return made, columns


def _table_of(view: View, columns: Sequence[str], width: int) -> Table:
    rows: list[list[str | Text]] = []
    for row in short(view.rows, MOST_ROWS):
        if isinstance(row, Gap):
            rows.append([Text(f"… {row.count} more", style="dim")])
            continue
        values = {"rel L2": row.rel_l2, "max abs": row.max_abs}
        values |= {FROM_TRUTH: row.from_truth, "allowance": row.allowance}
        values |= {"used": row.used, "of contrast": row.meaning}
        rows.append([row.beside(row.name), *(values[column] for column in columns), _verdict(row)])
    made = table(("point", *columns, "verdict"), rows, f" {'r' * len(columns)}l")
    made.columns[0].max_width = max(12, width - 56)
    return made


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


def _set(found: SetView) -> Iterator[RenderableType]:
    """How the numbers of a set spread, its worst probes, and what it covers."""
    yield Text()
    yield Text(f"The set: {found.sentence}.", style="bold")
    if found.numbers:
        yield table(PERCENTILES, found.numbers, " rrrr")
    yield table(WORST, found.worst, "llr  rr")
    yield from (Text(text, style="red") for text in found.refused)
    yield from map(Text, (*found.screened, *found.coverage))


def _costs(found: CostView, width: int) -> Iterator[RenderableType]:
    """What the format costs: a bar for each point, what the kernel adds beside it."""
    yield Text()
    yield Text(TITLE, style="bold")
    yield from (Text(f"✗ {text}", style="red") for text in found.wrong)
    if found.stored and width >= WIDE_ENOUGH:
        yield table(STORED_HEAD, found.stored, "   rrrr")
    else:
        yield from map(Text, map(as_sentence, found.stored))
    room = min(24, width - NARROW)
    # Where there is little room, bars go first, then what a layer adds.
    bar, adds = ([""] if room >= 8 else []), (["adds (rank)"] if room >= 0 else [])
    rows: list[list[str | Text]] = []
    for row in few(found.rows, MOST_COSTS):
        if isinstance(row, Gap):
            rows.append([Text(f"… {row.count} more", style="dim")])
            continue
        name, cost, snr, added, rank, kernel, _ = row.cells
        place = [f"{added} ({rank})" if rank else added] if adds else []
        bars = [Text(_across(row.part, room), style="blue")] if bar else []
        rows.append([name, *bars, cost, snr, *place, kernel])
    if rows:
        titles = ("point", *bar, "format", "SNR", *adds, "kernel")
        yield table(titles, rows, f" {'l' * len(bar)}{'r' * (3 + len(adds))}")
        yield Text(LEGEND, style="dim")
    yield Text()
    yield Text(" ".join(found.sentences))


def _across(part: float, room: int) -> str:
    """A bar of that part of the room, to an eighth of a letter."""
    eighths = round(part * room * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


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
        few = rows[start : start + step]
        worst = max(few, key=lambda row: (not row.ok, row.error is None, row.error or 0.0))
        line.append(_bar(worst, low, high), style="green" if worst.ok else "red")
    yield line.append(label, style="dim")


def _bar(row: Row, low: float, high: float) -> str:
    if row.error is None:
        return row.symbol
    if row.error == 0:
        return _BARS[0]
    if not math.isfinite(row.error):
        return _BARS[-1]
    part = (math.log10(row.error) - low) / (high - low)
    return _BARS[round(part * (len(_BARS) - 1))]


render = text_renderer(look, _parts)
