"""Rows of the proving ground: as they are made (JSON lines), and as the repository keeps them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COLUMNS = (
    *("id", "owed", "outcome", "verdict", "effect", "used"),
    *("right", "cause", "part", "told", "peers", "why", "on", "seconds"),
)
"""`right` are the points that may be named, `cause` the one that was; `part` says whether the
module inside was right, too, `told` what else was said wrongly; `peers` what others said, `on`
where the case was asked."""
SAID = {"same": "s", "differs": "d", "placed": "p", "cannot": "-"}
"""What a peer said, as a letter; peers are in the order of their names."""


def stored(path: Path) -> Iterator[Row]:
    """Rows of earlier runs; a line that was cut off is done again."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def add(path: Path, rows: Iterable[Row]) -> None:
    """Append rows, each a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut)
        for row in rows:
            file.write(json.dumps(row, sort_keys=True) + "\n")


def compact(rows: Iterable[Row]) -> str:
    """The table that is kept: tab-separated, sorted by id."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: str(row["id"])):
        writer.writerow([_cell(row.get(name, "")) for name in COLUMNS])
    return text.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2g}"
    if isinstance(value, list):
        return ",".join(map(str, value[:4]))
    if isinstance(value, dict):
        return "".join(SAID[said] for _, said in sorted(value.items()))
    return " ".join(str(value).split())[:160]


def read(path: Path) -> list[Row]:
    """The table again."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def without_times(rows: Iterable[Row]) -> list[Row]:
    """What two runs with one seed have in common."""
    return [{name: row[name] for name in row if name != "seconds"} for row in rows]
