"""Text for a terminal, made without one: the same whatever the environment says.

A wide character takes two cells.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from rich import box
from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from driftwalk.document import Document

from .door import renderer
from .layout import Cell, D, Fact, Head, Sign, V
from .numbers import cut

D_contra = TypeVar("D_contra", bound=Document, contravariant=True)

STYLES = {"pass": "green", "drift": "red", "unverified": "yellow", "study failed": "red"}


def plain_console(width: int | None = None, color: bool = False) -> Console:
    """An empty environment: COLUMNS, NO_COLOR or TERM must not change what a result looks like."""
    return Console(
        file=io.StringIO(),
        width=width or 100,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
        _environ={},
    )


class TextRenderer(Protocol[D_contra]):
    def __call__(
        self, document: D_contra, width: int | None = None, color: bool = False
    ) -> str: ...


def text_renderer(
    look: Callable[[D], V], parts: Callable[[V, Console], Iterable[RenderableType]]
) -> TextRenderer[D]:
    """What writes a document for a terminal; ANSI colours only where asked for."""

    @renderer
    def render(document: D, width: int | None = None, color: bool = False) -> str:
        view, console = look(document), plain_console(width, color)
        return printed(console, parts(view, console), view)

    return render


def printed(console: Console, parts: Iterable[RenderableType], view: Head[Document]) -> str:
    """All parts, then the headline: one line however long, so that `tail -n 1` finds it."""
    headline = f"\n{view.symbol} {view.headline}" if view.symbol else f"\n{view.headline}"
    with console.capture() as captured:
        for part in parts:
            console.print(part)
        console.print(Text(headline, f"bold {STYLES.get(view.tone, '')}"), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def about(facts: Iterable[Fact]) -> Table:
    """A line for each fact, the values below each other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in facts:
        grid.add_row(Text(label), Text(value))
    return grid


def noted(notes: Iterable[str]) -> Iterator[Text]:
    return (Text(f"Note: {note}") for note in notes)


def table(titles: Sequence[str], rows: Iterable[Iterable[Cell | Text]], sides: str = "") -> Table:
    """A table; `sides` has an `r` for each column that is set right, an `l` for each set left.

    Cells of these stay on one line; the text of all other columns is wrapped.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title, side in zip(titles, sides.ljust(len(titles)), strict=True):
        if side == " ":
            made.add_column(title, overflow="fold")
        else:
            made.add_column(title, justify="right" if side == "r" else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(shown, row))
    return made


def shown(cell: Cell | Text) -> Text:
    if isinstance(cell, Sign):
        return Text(str(cell), STYLES.get(cell.tone, "dim"))
    return Text(cell) if isinstance(cell, str) else cell


def fit(text: str, cells: int) -> str:
    """At most so many cells, the middle cut out."""
    most = cells
    while cell_len(text) > cells and most > 1:
        text = cut(text, most)
        most -= 1
    return text


def padded(text: str, cells: int) -> str:
    return text + " " * (cells - cell_len(text))


def wrapped(pieces: Iterable[str], between: str, cells: int) -> Iterator[str]:
    """Lines of whole pieces; one wider than a line is broken between words, else anywhere."""
    line = ""
    for piece in pieces:
        longer = f"{line}{between}{piece}" if line else piece
        if cell_len(longer) <= cells:
            line = longer
            continue
        if line:
            yield line
        words = piece.split(" ")
        *full, line = wrapped(words, " ", cells) if len(words) > 1 else chop_cells(piece, cells)
        yield from full
    if line:
        yield line
