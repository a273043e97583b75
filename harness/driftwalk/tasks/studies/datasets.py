"""Labelled sentences: those that are built in, or a file of the user's own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ...errors import UsageError, nearest

LEAST, MOST = 4, 2000
"""Sentences: fewer have no neighbourhoods; every pair of more would fill the memory."""

BUILT_IN = {
    "cities": "Paris and Berlin: 25 + 25 sentences cut before the name, 25 + 25 complete ones",
    "cities-incomplete": "only those cut before the name",
    "cities-complete": "only the complete ones",
}


@dataclass(frozen=True)
class Dataset:
    """Sentences and their labels, in order."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]


def load_dataset(given: str | Path) -> Dataset:
    """A built-in set by its name, or a CSV or JSONL file with the columns text and label."""
    if isinstance(given, str) and given in BUILT_IN:
        return _cities(given)
    path = Path(given)
    kind = path.suffix.lower()
    if kind not in (".csv", ".jsonl"):
        raise UsageError(
            f"Unknown dataset {str(given)!r}. {nearest(str(given), BUILT_IN)} "
            "Or name a .csv or .jsonl file with the columns text and label."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{str(path)!r} is not UTF-8: {error.reason}.") from None
    rows = list(_csv(path.name, text) if kind == ".csv" else _jsonl(path.name, text))
    if not LEAST <= len(rows) <= MOST:
        raise UsageError(f"{path.name} has {len(rows)} rows; {LEAST} to {MOST} are needed.")
    return Dataset(path.name, tuple(t for t, _ in rows), tuple(label for _, label in rows))


def _cities(name: str) -> Dataset:
    text = files(__package__).joinpath("cities.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    form = name.partition("-")[2]
    chosen = [row for row in rows if form in ("", row["form"])]
    labels = (row["label"] if form else f"{row['label']}, {row['form']}" for row in chosen)
    return Dataset(name, tuple(row["text"] for row in chosen), tuple(labels))


def _csv(name: str, text: str) -> Iterator[tuple[str, str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = reader.fieldnames or ()
        if missing := [column for column in ("text", "label") if column not in columns]:
            raise UsageError(
                f"{name}, line 1: no column {' and no column '.join(missing)}; the first line "
                "names the columns, among them text and label."
            )
        for row in reader:
            yield _checked(name, reader.line_num, row)
    except csv.Error as error:
        raise UsageError(f"{name}, line {reader.reader.line_num}: {error}.") from None


def _jsonl(name: str, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name}, line {number}: not JSON: {error}.") from None
        if not isinstance(row, dict):
            raise UsageError(f"{name}, line {number}: expected an object with text and label.")
        yield _checked(name, number, row)


def _checked(name: str, line: int, row: dict[str, object]) -> tuple[str, str]:
    for key in ("text", "label"):
        value = row.get(key)
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{name}, line {line}: {key} is empty or not a text.")
    if None in row:  # csv puts what is beyond the columns under this key
        raise UsageError(f"{name}, line {line}: more values than columns; quote commas in texts.")
    return str(row["text"]), str(row["label"])
