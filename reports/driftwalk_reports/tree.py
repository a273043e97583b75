"""The points of a model as a tree around what is marked: the rest is summed up, never hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from .numbers import used
from .rows import ROOT, Fact, Row

DEEPEST = 4
"""Levels of the tree; what is nested deeper stands at the last."""
MOST_TOP, MOST_NESTED = 12, 8
"""So many neighbours are all shown; of more, only those beside a mark."""
MOST_RUNS = 3
"""Between two shown points; more changes of verdict than this become one line."""


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
class Line:
    """One line of the tree: where it hangs, what it is called, and what is known of it."""

    branch: str
    """Drawn before the label."""
    below: str
    """Drawn before whatever else belongs to this line."""
    label: str
    ok: bool


@dataclass(frozen=True)
class PointLine(Line):
    """One point."""

    row: Row


@dataclass(frozen=True)
class RunLine(Line):
    """Several points, summed up; all clauses but the first can be left out."""

    last: str
    """The label of the last part; the other is that of the first."""
    clauses: tuple[str, ...]


@dataclass(frozen=True)
class RemarkLine(Line):
    """What is known of the inside of a point."""

    text: str


def tree(rows: Sequence[Row], remark: Fact | None = None) -> list[Line]:
    """The lines of a model; `remark` (who, what) hangs below the root cause as a part of it."""
    nodes = _grow([(_path(row.name), row) for row in rows])
    return list(_draw(nodes, "", MOST_TOP, remark))


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


def _draw(nodes: Sequence[Node], stem: str, most: int, remark: Fact | None) -> Iterator[Line]:
    entries = list(_entries(nodes, most))
    for number, entry in enumerate(entries):
        last = number == len(entries) - 1
        branch, below = (stem + "└─ ", stem + "   ") if last else (stem + "├─ ", stem + "│  ")
        if not isinstance(entry, Node):
            yield _summary(branch, below, entry)
            continue
        inside = entry.parts if entry.marked else ()
        told = remark if entry.own is not None and ROOT in entry.own.marks else None
        # What belongs to the line itself keeps a stem where something hangs below it.
        hung = below + ("│  " if inside or told else "   ")
        if entry.own is not None and (inside or entry.ok or not entry.own.ok):
            yield PointLine(branch, hung, entry.label, entry.own.ok, entry.own)
        else:
            yield _summary(branch, hung, [entry])
        if told:
            at, hung = ("├─ ", "│     ") if inside else ("└─ ", "      ")
            yield RemarkLine(below + at, below + hung, told[0], False, told[1])
        yield from _draw(inside, below, MOST_NESTED, remark)


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
            if len(run) == 1:
                yield run[0]
            else:
                yield run


def _summary(branch: str, below: str, nodes: Sequence[Node]) -> Line:
    rows = [row for node in nodes for row in node.rows]
    last = nodes[-1].label if len(nodes) > 1 else ""
    good = all(row.ok for row in rows)
    return RunLine(branch, below, nodes[0].label, good, last, _summed(rows))


def _summed(rows: Sequence[Row]) -> tuple[str, ...]:
    """Several points in clauses: how many, and how far the farthest went."""
    wrong = Counter(row.verdict for row in rows if not row.ok)
    count = sum(wrong.values())
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
