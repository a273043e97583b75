"""The registers of tuned numbers, read as text: every entry, and the same file with one changed."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REGISTERS = {
    "measure": "harness/driftwalk/measure/constants.py",
    "judge": "harness/driftwalk/judge/constants.py",
    "tasks": "harness/driftwalk/tasks/constants.py",
    "backends": "backends/driftwalk_backends/constants.py",
    "formats": "backends/driftwalk_backends/formats/constants.py",
    "reducing": "backends/driftwalk_backends/reducing/constants.py",
}
"""The register of each wing, relative to the root."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.LShift: lambda a, b: int(a) << int(b),
}


@dataclass(frozen=True)
class Entry:
    """One tuned number, or one table of them."""

    name: str
    value: str
    """As the register writes it."""
    words: str
    """What it is; empty where the register does not say."""
    file: str
    """Relative to the root."""
    line: int
    wing: str


def entries(root: Path = ROOT) -> tuple[Entry, ...]:
    """Every entry of every register, in order; nothing is imported."""
    return tuple(
        entry
        for wing, file in REGISTERS.items()
        for entry in entries_in((root / file).read_text("utf-8"), file, wing)
    )


def entries_in(text: str, file: str, wing: str) -> Iterator[Entry]:
    """The entries of one register."""
    body, lines = ast.parse(text, file).body, text.splitlines(keepends=True)
    for place, node in enumerate(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            before, after = _around(lines, node.value)
            last = node.value.end_lineno or node.value.lineno
            whole = "".join(lines[node.value.lineno - 1 : last])
            value = whole[len(before) : len(whole) - len(after)]
            words = _words(body[place + 1]) if place + 1 < len(body) else ""
            yield Entry(node.target.id, value, words, file, node.lineno, wing)


def changed(entry: Entry, text: str, factor: float) -> str:
    """A register's text with the value of one entry times a factor: all numbers of a table.

    Whole numbers stay whole: rounded, changed by one at least, and never less than 1 where they
    were positive, so that a 1 that should become smaller is left alone.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor is {factor!r}; it must be a positive, finite number.")
    value = next((v for name, v in _values(text) if name == entry.name), None)
    if value is None:
        raise ValueError(f"{entry.file} has no entry {entry.name}; read its entries again.")
    lines = text.splitlines(keepends=True)
    for leaf in sorted(_leaves(value), key=lambda one: (one.lineno, one.col_offset), reverse=True):
        before, after = _around(lines, leaf)
        made = f"{before}{_times(_number(leaf), factor)!r}{after}"
        lines[leaf.lineno - 1 : leaf.end_lineno] = [made]
    return "".join(lines)


def _around(lines: list[str], node: ast.expr) -> tuple[str, str]:
    """What stands before an expression on its first line, and behind it on its last."""
    last = lines[(node.end_lineno or node.lineno) - 1]
    before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    return before, last.encode()[node.end_col_offset :].decode()


def _values(text: str) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _leaves(value: ast.expr) -> Iterator[ast.expr]:
    """The numbers of a value, written as 0.5 or as 2.0**-8; keys of tables are none."""
    if isinstance(value, ast.Dict):
        for item in value.values:
            yield from _leaves(item)
    elif isinstance(value, ast.Tuple | ast.List):
        for item in value.elts:
            yield from _leaves(item)
    elif not (isinstance(value, ast.Constant) and isinstance(value.value, str | bool)):
        yield value


def _number(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError(f"{ast.unparse(node)!r} is no number; a register holds numbers and tables.")


def _times(value: float, factor: float) -> float:
    if isinstance(value, float):
        return value * factor
    made = round(value * factor)
    if made == value and factor != 1:
        made += 1 if factor > 1 else -1
    return max(made, 1) if value > 0 else made


def _words(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    text = node.value.value if is_text else None  # type: ignore[attr-defined]
    return " ".join(text.split()) if isinstance(text, str) else ""
