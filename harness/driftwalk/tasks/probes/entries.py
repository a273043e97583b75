"""A set of probes as it is read: a folder, a file of lines, a list, or one that is built in.

One probe is read at a time, so that a file of a hundred thousand lines takes no memory. What cannot
be read is an entry, too, which says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DriftwalkError, ProbeError, UsageError, nearest
from ...input_files import PROBE_FILES
from ...states import Probe

BUILTIN, LINES, SUGGEST = "builtin:", ".jsonl", "suggest"
MOST_CHARACTERS = 1 << 28
"""Of one line."""
_TEXT = ".txt"
_LONGEST_NAME = 200


@dataclass(frozen=True, eq=False)
class Entry:
    """One probe of a set, before it is made."""

    number: int
    name: str
    given: object = None
    """Whatever `verify(probe=...)` takes."""
    why: str = ""
    """Why it could not be read; empty where it could."""


@dataclass(frozen=True)
class Source:
    """Where the probes of a set come from; they can be read more than once."""

    origin: str
    read: Callable[[], Iterator[Entry]]
    count: int | None = None
    """How many there are, where that is known without reading."""
    unit: str = "probe"
    """What an entry is: a probe, a line, a file."""
    notes: tuple[str, ...] = ()


def source_of(given: object) -> Source | str:
    """Where probes come from; a name (`builtin:text`, `suggest`) where the model must make them."""
    if isinstance(given, str) and (given == SUGGEST or given.startswith(BUILTIN)):
        return given
    if isinstance(given, str | Path):
        return _of_path(Path(given))
    if isinstance(given, Mapping):
        return listed("mapping", given.items())
    if isinstance(given, Iterable):
        return listed("list", ((f"probe {n}", one) for n, one in enumerate(given, 1)))
    raise UsageError(
        f"Cannot take {str(given)[:60]!r} for a set of probes: give a list, a folder, a {LINES} "
        "file, builtin:text, builtin:edge or suggest."
    )


def listed(origin: str, probes: Iterable[tuple[object, object]]) -> Source:
    """A set that is at hand: names and probes."""
    entries = [Entry(n, _name(name), one) for n, (name, one) in enumerate(probes, 1)]
    return Source(origin, lambda: iter(entries), len(entries))


def _of_path(path: Path) -> Source:
    if path.is_dir():
        return Source(f"folder {path.name}", lambda: _in_folder(path), unit="file")
    if not path.exists():
        known = (SUGGEST, "builtin:text", "builtin:edge")
        raise UsageError(f"There is no set of probes {str(path)!r}. {nearest(str(path), known)}")
    if path.suffix == LINES:
        return Source(f"file {path.name}", lambda: _in_lines(path), unit="line")
    if path.suffix in PROBE_FILES:
        return Source(f"file {path.name}", lambda: iter([Entry(1, path.stem, path)]))
    raise UsageError(
        f"{path.name!r} is no set of probes: give a folder of probe files, or a {LINES} file with "
        "one probe a line."
    )


def _in_folder(folder: Path) -> Iterator[Entry]:
    """Probe files and texts, in the order of their names."""
    try:
        files = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise UsageError(f"Cannot read {str(folder)!r}: {error.strerror or error}.") from None
    for number, file in enumerate(files, 1):
        name = _name(file.stem)
        if file.suffix in PROBE_FILES:
            yield Entry(number, name, file)
        elif file.suffix == _TEXT:
            try:
                yield Entry(number, name, file.read_text("utf-8"))
            except (OSError, ValueError) as error:
                yield Entry(number, name, why=f"cannot be read: {error}")
        else:
            known = ", ".join((*PROBE_FILES, _TEXT))
            yield Entry(number, _name(file.name), why=f"is no probe file; known are {known}")


def _in_lines(path: Path) -> Iterator[Entry]:
    """A line at a time; empty lines count, and are no probes."""
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_CHARACTERS):
                number += 1
                if line.strip():
                    yield _of_line(number, line)
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None


def _of_line(number: int, line: bytes) -> Entry:
    name = f"line {number}"
    try:
        data = json.loads(line.decode("utf-8"))
        if isinstance(data, dict):
            data = dict(data)
            name = _name(data.pop("name", name))
        return Entry(number, name, _given(data))
    except json.JSONDecodeError as error:
        return Entry(number, name, why=f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError, ProbeError) as error:
        return Entry(number, name, why=str(error).rstrip("."))


def _given(data: Any) -> object:
    """A text, texts, or inputs by name, as `verify(probe=...)` takes them."""
    if isinstance(data, dict):
        for key in ("text", "texts", "inputs"):
            if key in data and len(data) == 1:
                data = data[key]
                break
    if isinstance(data, str):
        return data
    if isinstance(data, list) and data and all(isinstance(one, str) for one in data):
        return data
    if isinstance(data, dict) and data:
        return data
    raise ProbeError('holds no probe: write a text, {"text": ...}, or {"input_ids": [[...]]}')


def _name(given: object) -> str:
    """A name on one line, of a length that fits a table."""
    return " ".join(str(given).split())[:_LONGEST_NAME] or "unnamed"


def to_line(name: str, probe: Probe) -> str:
    """A probe as a line of a file; the numbers of its inputs, whatever it was made of."""
    if probe.others:
        raise ProbeError(f"{name}: inputs that are no arrays cannot stand in a {LINES} file.")
    inputs = {key: array.tolist() for key, array in probe.inputs.items()}
    return json.dumps({"name": name, "inputs": inputs}, separators=(",", ":")) + "\n"


Make = Callable[[object], Probe]
"""A checked probe of whatever a user may give: `stage.make_probe` for one model."""


def made(entries: Iterable[Entry], make: Make) -> Iterator[tuple[Entry, Probe | str]]:
    """Each entry with its probe, or with why there is none."""
    for entry in entries:
        if entry.why:
            yield entry, entry.why
            continue
        try:
            yield entry, make(entry.given)
        except DriftwalkError as error:
            yield entry, str(error).rstrip(".")


def refusal(source: Source, number: int, name: str, why: str) -> str:
    """Why one entry was refused, as a sentence that names it."""
    plain = name in (f"line {number}", f"probe {number}")
    return f"{source.unit.title()} {number}{'' if plain else f' ({name})'}: {why}."
