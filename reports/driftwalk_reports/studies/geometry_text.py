"""A geometry study on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.tasks.studies.geometry_result import Geometry

from ..console import plain_console, printed
from ..door import renderer
from .geometry_view import GeometryView, look


@renderer
def render(study: Geometry, width: int | None = None, color: bool = False) -> str:
    """The study as text; ANSI colours only where asked for."""
    view = look(study)
    last = Text(f"\n{view.headline}", style="bold red" if view.failed else "bold")
    return printed(plain_console(width, color), _parts(view), last)


def _parts(view: GeometryView) -> Iterator[RenderableType]:
    for label, value in view.about:
        yield Text(f"{label:<10} {value}")
    yield _table(view)
    for text in (*view.sentences, *(f"Note: {note}" for note in view.notes)):
        yield Text(text)


def _table(view: GeometryView) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("point", overflow="fold")
    titles = ["separation"]
    if view.with_candidate:
        kept = f"{view.k} neighbours kept"
        titles = [kept, "CKA", "Procrustes", "moved by", "separation", "after"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in view.rows:
        both = (row.overlap, row.cka, row.procrustes, row.displacement, row.before, row.after)
        cells = both if view.with_candidate else (row.before,)
        table.add_row(*map(Text, (row.point, *cells)))
    return table
