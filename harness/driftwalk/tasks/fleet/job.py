"""What is to be done, and where it can be done: words only, so that it travels anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import driftwalk

JobKind = Literal["hwcheck", "verify"]
Device = Literal["cpu", "cuda"]

DEVICE, GOLDEN = "{device}", "{golden}"
"""Stand in a job's arguments for what only the place knows: its device, its copy of the golden."""


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

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(hashlib.sha256(name.encode()).digest())
            digest.update(hashlib.sha256(self.files[name]).digest())
        return digest.hexdigest()
