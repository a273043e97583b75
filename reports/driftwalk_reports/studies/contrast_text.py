"""A contrast on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.studies.contrast_result import Contrast

from ..console import plain_console, printed
from ..door import renderer
from ..fitting import fit
from .contrast_view import ContrastView, PairView, look

MOST_COLUMNS = 12


@renderer
def render(study: Contrast, width: int | None = None, color: bool = False) -> str:
    """The contrast as text; ANSI colours only where asked for."""
    view = look(study)
    last = Text(f"\n{view.headline}", style="bold red" if view.failed else "bold")
    console = plain_console(width, color)
    return printed(console, _parts(view, console), last)


def _parts(view: ContrastView, console: Console) -> Iterator[RenderableType]:
    for label, value in view.about:
        yield Text(f"{label:<10} {value}")
    for number, pair in enumerate(view.pairs):
        yield Text(f"\nL2 distance per token, row {number}; ≠ marks tokens that differ", "bold")
        if pair.first:
            yield Text(f"  A  {pair.first}\n  B  {pair.second}")
        yield _fitting(view, number, pair, console)
    for text in (*view.sentences, *(f"Note: {note}" for note in view.notes)):
        yield Text(text)


def _fitting(view: ContrastView, number: int, pair: PairView, console: Console) -> Table:
    """The table with the most tokens that fits; at least one."""
    wide = console.options.update(max_width=10_000)
    for most in range(MOST_COLUMNS, 1, -1):
        table = _table(view, number, pair, most)
        if Measurement.get(console, wide, table).maximum <= console.width:
            return table
    return _table(view, number, pair, 1)


def _shown(pair: PairView, most: int) -> list[int]:
    """The columns that fit: one where nothing differs yet, those that differ, others."""
    all_of_them = range(len(pair.tokens))
    start = next((i for i in all_of_them if pair.tokens[i].differs), 0)
    ordered = sorted(all_of_them, key=lambda i: (i != start - 1, not pair.tokens[i].differs, i))
    return sorted(ordered[:most])


def _table(view: ContrastView, number: int, pair: PairView, most: int) -> Table:
    shown = _shown(pair, most)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", overflow="fold")
    table.add_column("per token", justify="right", no_wrap=True)
    if view.with_drift:
        table.add_column("drift", justify="right", no_wrap=True)
        table.add_column("of it", justify="right", no_wrap=True)
    for at in shown:
        head = pair.tokens[at]
        words = fit(head.text.partition(" | ")[0], 8)
        table.add_column(Text(f"≠ {words}" if head.differs else words), justify="right")
    left = len(pair.tokens) + pair.more - len(shown)
    if left > 0:
        table.add_column(Text(f"… {left} more"))
    for row in view.rows:
        cells = row.l2[number] if number < len(row.l2) else ()
        drift = [row.drift, row.share] if view.with_drift else []
        numbers = [cells[at] if at < len(cells) else "" for at in shown]
        table.add_row(*map(Text, [row.point, row.distance, *drift, *numbers]))
    return table
