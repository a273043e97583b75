"""Text that fits a number of terminal cells: cut, padded, wrapped. A wide character takes two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells

from .numbers import cut


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
