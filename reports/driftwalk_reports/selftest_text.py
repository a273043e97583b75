"""A self-test on a terminal: by kind, by layer, what was missed, and the sentences last."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.selftest.result import SelfTest

from .console import plain_console, printed
from .door import renderer
from .selftest_view import Grid, SelfTestView, look


@renderer
def render(result: SelfTest, color: bool = False, width: int = 100) -> str:
    """The result as text; ANSI colours only where asked for."""
    view = look(result)
    return printed(plain_console(width, color), _parts(view), Text("\n".join(view.headlines)))


def _parts(view: SelfTestView) -> Iterator[RenderableType]:
    about = dict(view.about)
    yield Text(f"{about['model']} on {about['candidate']}, seed {about['seed']}")
    yield from map(_table, view.grids)
    yield from map(Text, view.remarks)


def _table(grid: Grid) -> Table:
    table = Table(box=box.SIMPLE)
    for place, name in enumerate(grid.columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table
