"""Many objects of one form as a table in JSON: a column for each value, and not a name for each.

    [{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"c": 2}}]

    {"columns": {"a": [1, 3]}, "same": {"b.c": 2}}

What all rows have in common stands once, in `same`; what only some of them have stands in `some`,
by the number of the row. The first column is always there, so that it says how many rows there are.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

COLUMNS, SAME, SOME = "columns", "same", "some"
Plain = dict[str, Any]


class Line(list[Any]):
    """A list that is written in one line."""


def to_table(rows: Sequence[Plain]) -> Plain | list[Plain]:
    """The table of objects; one or none stays a list."""
    if len(rows) < 2:
        return list(rows)
    table: dict[str, Plain] = {COLUMNS: {}, SAME: {}, SOME: {}}
    for key in dict.fromkeys(key for row in rows for key in row):
        has = {number: row[key] for number, row in enumerate(rows) if key in row}
        if len(has) == len(rows):
            _add(table, key, list(has.values()))
        else:
            table[SOME][key] = {str(number): value for number, value in has.items()}
    return {part: held for part, held in table.items() if held}


def _add(table: dict[str, Plain], key: str, values: list[Any]) -> None:
    """A column, or one for each key of objects that all have the same ones."""
    first = values[0]
    keys = first.keys() if isinstance(first, dict) else ()
    alike = all(isinstance(value, dict) and value.keys() == keys for value in values)
    if keys and alike and not any("." in inner for inner in keys):
        for inner in keys:
            _add(table, f"{key}.{inner}", [value[inner] for value in values])
    elif table[COLUMNS] and all(repr(value) == repr(first) for value in values):  # 0.0 is not -0.0
        table[SAME][key] = first
    else:
        table[COLUMNS][key] = Line(values)


def from_table(table: Plain) -> list[Plain]:
    """The objects; an error of value where the table is none."""
    columns, same, some = (table.get(part, {}) for part in (COLUMNS, SAME, SOME))
    if not all(isinstance(part, dict) for part in (columns, same, some)):
        raise ValueError("its parts are no objects")
    sizes = {len(column) if isinstance(column, list) else -1 for column in columns.values()}
    if len(sizes) != 1 or sizes == {-1}:
        raise ValueError("its columns are not of one length")
    rows: list[Plain] = [{} for _ in range(sizes.pop())]
    for key, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            _put(row, key, value)
    for key, value in same.items():
        for row in rows:
            _put(row, key, value)
    for key, held in some.items():
        for number, value in held.items() if isinstance(held, dict) else ():
            if not number.isdecimal() or len(number) > 9 or int(number) >= len(rows):
                raise ValueError(f"there is no row {number[:20]!r}")
            _put(rows[int(number)], key, value)
    return rows


def _put(row: Plain, key: str, value: Any) -> None:
    *way, last = key.split(".")
    for name in way:
        row = row.setdefault(name, {})
        if not isinstance(row, dict):
            raise ValueError(f"{key[:60]!r} is inside of what is no object")  # noqa: TRY004
    row[last] = value


def to_text(document: Any, ascii_only: bool = False) -> str:
    """Strict JSON, a line for each value, and for each `Line` one.

    `allow_nan=False` raises if a non-finite number were left.
    """
    lines: list[str] = []
    mark = uuid.uuid4().hex

    def marked(value: Any) -> Any:
        if isinstance(value, Line):
            lines.append(json.dumps(value, allow_nan=False, ensure_ascii=ascii_only))
            return f"{mark}:{len(lines) - 1}:"
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(marked(document), indent=1, allow_nan=False, ensure_ascii=ascii_only)
    parts = re.split(f'"{mark}:([0-9]+):"', text)
    parts[1::2] = [lines[int(number)] for number in parts[1::2]]
    return "".join(parts) + "\n"
