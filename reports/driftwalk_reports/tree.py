"""The points of a model as a tree around what is marked, drawn with names to the left, numbers in
columns and marks at the end. The rest of the model is summed up, never hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from .console import fit, padded, wrapped
from .layout import Fact
from .numbers import used
from .rows import ROOT, Row

DEEPEST = 4
"""Levels of the tree; what is nested deeper stands at the last."""
MOST_TOP, MOST_NESTED = 12, 8
"""So many neighbours are all shown; of more, only those beside a mark."""
MOST_RUNS = 3
"""Between two shown points; more changes of verdict than this become one line."""
NUMBERS = 34
"""Cells that names leave free for what is said of them."""
TITLES = ("rel L2", "from truth", "used")


@dataclass(frozen=True)
class Node:
    """A part of the model: its own point, where it has one, and the parts inside it."""

    label: str
    own: Row | None
    parts: tuple[Node, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        own = (self.own,) if self.own is not None else ()
        return (*(row for part in self.parts for row in part.rows), *own)

    @property
    def marked(self) -> bool:
        return any(row.marks for row in self.rows)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)


@dataclass(frozen=True)
class TreeLine:
    """One line of the tree: where it hangs, what it is called, and what is known of it."""

    branch: str
    """Drawn before the label."""
    below: str
    """Drawn before whatever else belongs to this line."""
    label: str
    ok: bool


@dataclass(frozen=True)
class PointLine(TreeLine):
    """One point."""

    row: Row

    @property
    def numbers(self) -> tuple[str, str, str]:
        """Both distances and the share of the allowance; a word where there is no number."""
        row = self.row
        if row.error is not None:
            return row.rel_l2, row.from_truth, row.used
        word = row.max_abs if row.verdict == "nonfinite" else row.verdict
        return f"{word} (allowed)" if row.allowed else word, "", ""


@dataclass(frozen=True)
class RunLine(TreeLine):
    """Several points, summed up; all clauses but the first can be left out."""

    last: str
    """The label of the last part; the other is that of the first."""
    clauses: tuple[str, ...]


@dataclass(frozen=True)
class RemarkLine(TreeLine):
    """What is known of the inside of a point."""

    text: str


def tree(rows: Sequence[Row], remark: Fact | None = None) -> list[TreeLine]:
    """The lines of a model; `remark` (who, what) hangs below the root cause as a part of it."""
    nodes = _grow([(_path(row.name), row) for row in rows])
    return list(_lines(nodes, "", MOST_TOP, remark))


def _path(name: str) -> tuple[str, ...]:
    """`encoder.layer.3.attn` by its parts: a number belongs to the word before it."""
    path: list[str] = []
    for word in name.split("."):
        if path and (word.isdigit() or len(path) == DEEPEST):
            path[-1] += f".{word}"
        else:
            path.append(word)
    return tuple(path)


def _grow(given: Sequence[tuple[tuple[str, ...], Row]]) -> list[Node]:
    """Neighbours that begin alike are parts of one node; the order of execution stays."""
    nodes = []
    for label, group in groupby(given, key=lambda item: item[0][0]):
        inside = [(path[1:], row) for path, row in group]
        own = [row for path, row in inside if not path]
        parts = _grow([(path, row) for path, row in inside if path])
        nodes += [Node(label, row, ()) for row in own[:-1]]
        if not own and len(parts) == 1:  # nothing but a longer name
            nodes.append(Node(f"{label}.{parts[0].label}", parts[0].own, parts[0].parts))
        else:
            nodes.append(Node(label, own[-1] if own else None, tuple(parts)))
    return nodes


def _lines(nodes: Sequence[Node], stem: str, most: int, remark: Fact | None) -> Iterator[TreeLine]:
    entries = list(_entries(nodes, most))
    for number, entry in enumerate(entries):
        last = number == len(entries) - 1
        branch, below = (stem + "└─ ", stem + "   ") if last else (stem + "├─ ", stem + "│  ")
        if not isinstance(entry, Node):
            yield _summary(branch, below, entry)
            continue
        inside = entry.parts if entry.marked else ()
        hanging = remark if entry.own is not None and ROOT in entry.own.marks else None
        # What belongs to the line itself keeps a stem where something hangs below it.
        hung = below + ("│  " if inside or hanging else "   ")
        if entry.own is not None and (inside or entry.ok or not entry.own.ok):
            label = entry.own.beside(entry.label)
            yield PointLine(branch, hung, label, entry.own.ok, entry.own)
        else:
            yield _summary(branch, hung, [entry])
        if hanging:
            at, hung = ("├─ ", "│     ") if inside else ("└─ ", "      ")
            yield RemarkLine(below + at, below + hung, hanging[0], False, hanging[1])
        yield from _lines(inside, below, MOST_NESTED, remark)


def _entries(nodes: Sequence[Node], most: int) -> Iterator[Node | list[Node]]:
    """All of few nodes; of many the marked ones with their neighbours, and runs of the others."""
    near = {place + step for place, node in enumerate(nodes) if node.marked for step in (-1, 0, 1)}
    if len(nodes) <= most:
        near = set(range(len(nodes)))
    for shown, group in groupby(range(len(nodes)), key=lambda place: place in near):
        gap = [nodes[place] for place in group]
        if shown:
            yield from gap
            continue
        runs = [list(run) for _, run in groupby(gap, key=lambda node: node.ok)]
        for run in runs if len(runs) <= MOST_RUNS else [gap]:
            yield run[0] if len(run) == 1 else run


def _summary(branch: str, below: str, nodes: Sequence[Node]) -> RunLine:
    rows = [row for node in nodes for row in node.rows]
    last = nodes[-1].label if len(nodes) > 1 else ""
    good = all(row.ok for row in rows)
    return RunLine(branch, below, nodes[0].label, good, last, _summed(rows))


def _summed(rows: Sequence[Row]) -> tuple[str, ...]:
    """Several points in clauses: how many, and how far the farthest went."""
    wrong = Counter(row.verdict for row in rows if not row.ok)
    count = wrong.total()
    needed = [row.needed for row in rows if row.needed is not None]
    farthest = used(max(needed)) if needed else ""
    if not count:
        within = sum(row.verdict == "ok" for row in rows)
        points = f"{within} point{'s' if within != 1 else ''} within tolerance"
        clauses = [f"at most {farthest} of the allowance"] if farthest else []
        clauses += [f"{len(rows) - within} allowed to differ"] if within < len(rows) else []
        return (points, *clauses)
    amount = f"{count} of {len(rows)}" if count < len(rows) else str(count)
    points = f"{amount} point{'s' if len(rows) > 1 else ''}"
    if set(wrong) == {"drift"}:
        return (f"{points} beyond", f"up to {farthest} the allowance")
    kinds = " + ".join(f"{number} {verdict}" for verdict, number in wrong.items())
    return (f"{points} amiss", kinds)


def draw(lines: Sequence[TreeLine], width: int) -> Iterator[Text]:
    """A title, then a line each; none is wider than asked."""
    named = [(line, _name(line, max(16, width - NUMBERS))) for line in lines]
    left = max(cell_len(name) for line, name in named if not isinstance(line, RemarkLine))
    columns = _columns(lines, width - left)
    sized = zip(TITLES, columns, strict=True)
    title = "  ".join(f"{word:>{size}}" for word, size in sized if size)
    yield Text(f"{padded('model', left)}    {title}" if title else "model", style="dim")
    for line, name in named:
        if isinstance(line, PointLine):
            yield from _point(line, padded(name, left), columns, width)
        elif isinstance(line, RunLine):
            yield _run(line, padded(name, left), width)
        elif isinstance(line, RemarkLine):
            yield from _remark(line, name, width)


def marks(row: Row) -> str:
    return "".join(f"  <--- {mark}" for mark in row.marks)


def _name(line: TreeLine, cells: int) -> str:
    room = max(8, cells - len(line.branch))
    if isinstance(line, RunLine) and line.last:
        half = (room - 3) // 2
        return f"{line.branch}{fit(line.label, half)} … {fit(line.last, half)}"
    nameless = "" if isinstance(line, RemarkLine) else "''"
    return line.branch + (fit(line.label, room) or nameless)


def _columns(lines: Sequence[TreeLine], room: int) -> tuple[int, ...]:
    """How wide the columns of numbers are; one without any, or without room, has no width."""
    found = [line.numbers for line in lines if isinstance(line, PointLine) and line.numbers[-1]]
    cells = zip(*found, strict=True) if found else [()] * len(TITLES)
    value, truth, share = (
        max(map(cell_len, (title, *column))) if any(column) else 0
        for title, column in zip(TITLES, cells, strict=True)
    )
    longest = max((len(marks(x.row)) for x in lines if isinstance(x, PointLine)), default=0)
    fits = 4 + value + 2 + truth + 2 + share + longest <= room
    return value, truth if fits else 0, share


def _point(line: PointLine, name: str, columns: tuple[int, ...], width: int) -> Iterator[Text]:
    values = zip(line.numbers, columns, strict=True)
    said = "  ".join(f"{value:>{size}}" for value, size in values if size)
    said = said if line.numbers[-1] else line.numbers[0]
    text = Text(f"{name}  ")
    text.append(f"{line.row.symbol} {said}", style="green" if line.ok else "red")
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
    more = wrapped(line.text.split(" "), " ", width - len(line.below))
    # Without a label the text begins where one would stand: a branch never ends in nothing.
    yield Text(name) if line.label else Text(name).append(next(more, ""), style="red")
    yield from (Text(line.below).append(text, style="red") for text in more)
