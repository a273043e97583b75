"""The files that a folder's weights lie in: what is wrong with them, and whether they change.

Weights are mapped, not read (sources.py): a file that somebody changes while a model is verified
changes the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from driftwalk.errors import ModelError
from driftwalk.native import library

_INDEX = "model.safetensors.index.json"
_HEADER = 8
"""Bytes that say how long the header of a safetensors file is."""
_LONGEST = 100_000_000
"""Bytes of a header; safetensors takes no longer ones."""


def what_is_wrong(folder: Path) -> str:
    """A sentence on the first file that is missing, cut off or not what its name says; or empty."""
    try:
        return _first_fault(folder)
    except OSError as error:
        return f"{Path(error.filename or folder).name} cannot be read: {error.strerror}."


def _first_fault(folder: Path) -> str:
    index = folder / _INDEX
    named: set[str] = set()
    if index.is_file():
        try:
            named = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{_INDEX} is not an index of weights; it may be cut off."
    missing = sorted(str(name) for name in named if not (folder / str(name)).is_file())
    if missing:
        return f"{_INDEX} names {missing[0]}, which is not there. Was the download complete?"
    faults = (_fault(file) for file in sorted(folder.glob("*.safetensors")))
    return next(filter(None, faults), "")


def _fault(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_HEADER), "little")
        if size < _HEADER or length > min(_LONGEST, size - _HEADER):
            return f"{file.name} is cut off, or is no safetensors file ({size:,} bytes)."
        try:
            header: dict[str, Any] = json.loads(opened.read(length))
            ends = [one["data_offsets"][1] for name, one in header.items() if name[:2] != "__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"{file.name} is no safetensors file: its header cannot be read."
    whole = _HEADER + length + max(ends, default=0)
    if size != whole:
        return f"{file.name} has {size:,} of {whole:,} bytes. Download or copy it again."
    return ""


class Files:
    """The files of a folder's weights, as they were when the model was loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._then = self._now()

    def watch(self) -> None:
        """Have the process say what happened where a file is cut off while it is mapped."""
        if (native := library()) is not None:
            text = (
                f"driftwalk: a file in {str(self._folder)!r} was cut off while its weights were "
                "read. Nothing of this run holds: run it again when nobody writes there.\n"
            )
            native.driftwalk_when_cut_off(text.encode(errors="replace")[:500])

    def _now(self) -> dict[str, tuple[int, int]]:
        found = {}
        for file in sorted(self._folder.glob("*.safetensors")):
            try:
                told = file.stat()
            except OSError:
                continue
            found[file.name] = told.st_size, told.st_mtime_ns
        return found

    def check(self) -> None:
        """Raise an error that names a file which is no longer what it was."""
        now = self._now()
        changed = [name for name, told in self._then.items() if now.get(name) != told]
        if changed:
            raise ModelError(
                f"{changed[0]} in {str(self._folder)!r} was changed while the model was in use. "
                "Its weights are read as they are needed, so that no number of this run holds: "
                "run it again when nobody writes there."
            )
