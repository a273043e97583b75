"""The tree of a model, drawn: names to the left, numbers in columns, marks at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from .fitting import fit, padded, wrapped
from .rows import Row
from .tree import Line, PointLine, RemarkLine, RunLine

NUMBERS = 34
"""Cells that names leave free for what is said of them."""
TITLES = ("rel L2", "used")


def draw(lines: Sequence[Line], width: int) -> Iterator[Text]:
    """A title, then a line each; none is wider than asked."""
    names = [_name(line, max(16, width - NUMBERS)) for line in lines]
    left = max(
        cell_len(name)
        for line, name in zip(lines, names, strict=True)
        if not isinstance(line, RemarkLine)
    )
    columns = _columns(lines)
    title = "  ".join(f"{word:>{size}}" for word, size in zip(TITLES, columns, strict=True))
    yield Text(f"{padded('model', left)}    {title}" if columns[1] else "model", style="dim")
    for line, name in zip(lines, names, strict=True):
        if isinstance(line, PointLine):
            yield from _point(line, padded(name, left), columns, width)
        elif isinstance(line, RunLine):
            yield _run(line, padded(name, left), width)
        elif isinstance(line, RemarkLine):
            yield from _remark(line, name, width)


def marks(row: Row) -> str:
    return "".join(f"  <--- {mark}" for mark in row.marks)


def _name(line: Line, cells: int) -> str:
    room = max(8, cells - len(line.branch))
    if isinstance(line, RunLine) and line.last:
        half = (room - 3) // 2
        return f"{line.branch}{fit(line.label, half)} … {fit(line.last, half)}"
    nameless = "" if isinstance(line, RemarkLine) else "''"
    return line.branch + (fit(line.label, room) or nameless)


def _cells(row: Row) -> tuple[str, str]:
    """The error and the share of the allowance; a word where there is no number."""
    if row.error is not None:
        return row.rel_l2, row.used
    word = row.max_abs if row.verdict == "nonfinite" else row.verdict
    return f"{word} (allowed)" if row.allowed else word, ""


def _columns(lines: Sequence[Line]) -> tuple[int, int]:
    """How wide the two columns of numbers are; without any, not at all."""
    found = [_cells(line.row) for line in lines if isinstance(line, PointLine)]
    numbers = [(value, share) for value, share in found if share]
    if not numbers:
        return 0, 0
    first, second = ([title] for title in TITLES)
    first += [value for value, _ in numbers]
    second += [share for _, share in numbers]
    return max(map(cell_len, first)), max(map(cell_len, second))


def _point(line: PointLine, name: str, columns: tuple[int, int], width: int) -> Iterator[Text]:
    value, share = _cells(line.row)
    told = f"{value:>{columns[0]}}  {share:>{columns[1]}}" if share else value
    text = Text(f"{name}  ")
    text.append(f"{line.row.symbol} {told}", style="green" if line.ok else "red")
    end = marks(line.row)
    if text.cell_len + len(end) > width:  # no room: the marks get a line of their own
        yield text
        text, end = Text(line.below), end.strip()
    yield text.append(end, style="bold red")


def _run(line: RunLine, name: str, width: int) -> Text:
    said, *clauses = line.clauses
    for clause in clauses:
        longer = f"{said}, {clause}"
        said = longer if cell_len(name) + 4 + cell_len(longer) <= width else said
    symbol, style = ("✓", "green") if line.ok else ("✗", "red")
    return Text(f"{name}  ").append(f"{symbol} {said}", style=style)


def _remark(line: RemarkLine, name: str, width: int) -> Iterator[Text]:
    start = f"{name}  " if line.label else name
    if cell_len(start) + cell_len(line.text) <= width:
        yield Text(start).append(line.text, style="red")
        return
    yield Text(name)
    for more in wrapped(line.text.split(" "), " ", width - len(line.below)):
        yield Text(line.below).append(more, style="red")
