"""What is to be done, and where it can be done: words only, so that it travels anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import driftwalk

from ...errors import UsageError

JobKind = Literal["hwcheck", "verify"]
Device = Literal["cpu", "cuda"]

DEVICE, GOLDEN = "{device}", "{golden}"
"""Stand in a job's arguments for what only the place knows: its device, its copy of the golden."""
BIGGEST_GOLDEN = 2**31
"""Bytes that are sent to every node."""


@dataclass(frozen=True)
class Place:
    """One device of one node: it works on one job at a time."""

    node: str
    device: str
    """As hwcheck's `--device` takes it there."""
    slot: int = 0
    """Several jobs may share a CPU; each has a slot of its own."""

    @property
    def kind(self) -> Device:
        return "cuda" if self.device.startswith("cuda") else "cpu"

    @property
    def name(self) -> str:
        return f"{self.node} {self.device}" + (f" #{self.slot}" if self.slot else "")


@dataclass(frozen=True)
class Job:
    """One command of driftwalk whose result is JSON."""

    kind: JobKind
    arguments: tuple[str, ...]
    """Of the command; `{device}` and `{golden}` are filled in where it runs."""
    label: str
    """For people."""
    at: str | None = None
    """The name of the only place where it makes sense; None: anywhere that has `needs`."""
    needs: Device = "cpu"
    golden: str = ""
    """The hash of the golden it is held against; "" for none."""
    folder: str = ""
    """Where its relative paths are seen from; "" for wherever it runs."""

    @property
    def id(self) -> str:
        """What was asked, as a hash: the same question has the same answer file."""
        asked = {
            "kind": self.kind,
            "arguments": list(self.arguments),
            "at": self.at,
            "golden": self.golden,
            "folder": self.folder,
            "driftwalk": driftwalk.__version__,
        }
        text = json.dumps(asked, sort_keys=True)  # ASCII: a lone surrogate is escaped
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def fits(self, place: Place) -> bool:
        if self.at is not None:
            return place.name == self.at
        return place.kind == self.needs

    def command(self, place: Place, golden: str = "") -> list[str]:
        """The words after `driftwalk`, for this place."""
        given = {DEVICE: place.device, GOLDEN: golden}
        return [self.kind, *(given.get(word, word) for word in self.arguments)]


@dataclass(frozen=True)
class Golden:
    """A trusted trace, as plain bytes by relative name, to be sent to every node once."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    single: bool = False
    """Whether it is a file, not a folder of files."""
    path: Path | None = None
    """Where it lies on the machine that packed it."""

    @property
    def sha256(self) -> str:
        """Of all names and bytes; "" where there is no golden."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(hashlib.sha256(name.encode()).digest())
            digest.update(hashlib.sha256(self.files[name]).digest())
        return digest.hexdigest() if self.files else ""


def pack(path: Path) -> Golden:
    """A golden's files, to be sent; a folder is taken whole."""
    if path.is_file():
        return Golden({path.name: path.read_bytes()}, True, path)
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else []
    if not files:
        raise UsageError(f"No golden at {str(path)!r}: `driftwalk record` makes one.")
    size = sum(file.stat().st_size for file in files)
    if size > BIGGEST_GOLDEN:
        raise UsageError(
            f"The golden {str(path)!r} has {size / 2**30:.1f} GiB; at most "
            f"{BIGGEST_GOLDEN / 2**30:.0f} GiB are sent to every node. Use a shorter probe."
        )
    named = {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
    return Golden(named, path=path)


def unpacked(golden: Golden, folder: Path) -> Path:
    """Write a golden's files below `folder`, and say what to call it there.

    The names come from another machine, and must not lead out of the folder.
    """
    for name, data in golden.files.items():
        inside = PurePosixPath(name)
        plain = inside.parts and not inside.is_absolute() and ".." not in inside.parts
        if not plain or any(character in name for character in "\\:\0"):
            raise UsageError(f"A golden has a file named {name!r}, which leads out of its folder.")
        path = folder.joinpath(*inside.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / next(iter(golden.files)) if golden.single else folder
