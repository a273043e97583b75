"""What a search keeps between runs: its probes as files, and how much each used of its allowance.

A probe is written before the list that names it, and the list by one rename: whenever a search is
stopped, what is on the disk is a search that can go on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ...files import read_json, writable_folder, write_atomically
from ...jsonable import Later, Size, decode, encode
from ...states import Probe

LIST, PROBES = "search.json", "probes"
VERSION = 2


@dataclass(frozen=True)
class Kept:
    """One probe of the corpus."""

    file: str
    name: str
    used: Size
    """The largest share of its allowance that a point used; 0 where it was kept for its reach and
    not judged."""
    quick: Size
    """The same by a tolerance that needs no truth: what mutants are looked at for."""
    run: int = 0
    """The run that found it; 0 for the set that the search began with."""
    reach: Mapping[str, float] = field(default_factory=dict)
    """The largest number of the reference at each point where no probe before had a larger one."""
    worst: Later[str] = ""
    """The module whose state used most of its allowance; empty where the point has none."""


@dataclass(frozen=True)
class Question:
    """What is searched for; a corpus belongs to one."""

    model: str
    reference: str
    candidate: str
    probes: str
    policy: str
    depth: str
    seed: int


@dataclass(frozen=True)
class _Stored:
    version: int
    question: Question
    runs: int
    tried: int
    kept: tuple[Kept, ...]


class Corpus:
    """The probes of one search, in a folder of their own."""

    def __init__(self, folder: Path, question: Question) -> None:
        self._folder, self._question = folder, question
        self.runs = self.tried = 0
        self.kept: list[Kept] = []
        self._probes: dict[str, Probe] = {}
        writable_folder(folder / PROBES)
        if (folder / LIST).exists():
            self._resume(read_json(folder / LIST))

    def _resume(self, data: object) -> None:
        where = f"{str(self._folder / LIST)!r}"
        try:
            stored = decode(_Stored, data, "corpus")
            names = [Path(one.file).name == one.file for one in stored.kept]
        except UsageError as error:
            raise UsageError(f"{where} is no list of a search: {error}") from None
        if stored.version != VERSION or not all(names):
            raise UsageError(f"{where} is of another version of driftwalk; choose another folder.")
        ours, theirs = encode(self._question), encode(stored.question)
        if differ := [key for key in ours if ours[key] != theirs.get(key)]:
            what = ", ".join(f"{key} {theirs.get(key)!r}" for key in differ)
            raise UsageError(f"{where} is of a search with {what}: choose another --corpus.")
        self.runs, self.tried, self.kept = stored.runs, stored.tried, list(stored.kept)

    def probe(self, kept: Kept) -> Probe:
        if kept.file not in self._probes:
            self._probes[kept.file] = Probe.load(self._folder / PROBES / kept.file)
        return self._probes[kept.file]

    def add(self, probe: Probe, kept: Kept) -> None:
        """Keep a probe, under a file's name of its own; the list is written by `save`."""
        file = f"{len(self.kept):06d}-{probe.sha256[:12]}.safetensors"
        probe.save(self._folder / PROBES / file)
        self._probes[file] = probe
        before = self.champions
        farthest = {
            point: value
            for point, value in kept.reach.items()
            if point not in before or value > before[point].reach[point]
        }
        self.kept.append(replace(kept, file=file, reach=farthest))

    def save(self, runs: int) -> None:
        self.runs = runs
        stored = _Stored(VERSION, self._question, runs, self.tried, tuple(self.kept))
        write_atomically(self._folder / LIST, json.dumps(encode(stored), indent=1) + "\n")

    @property
    def set(self) -> Sequence[Kept]:
        """The probes that the search began with."""
        return [one for one in self.kept if one.run == 0]

    @property
    def ranked(self) -> Sequence[Kept]:
        """The worst first; of equals, that which was found first."""
        return sorted(self.kept, key=lambda one: -one.used)

    @property
    def champions(self) -> dict[str, Kept]:
        """For each module the probe that has the largest number there."""
        best: dict[str, Kept] = {}
        for one in self.kept:
            for point, value in one.reach.items():
                if point not in best or value > best[point].reach[point]:
                    best[point] = one
        return best

    @cached_property
    def bounds(self) -> dict[str, float]:
        """The largest value, without its sign, that each float input has in the set."""
        found: dict[str, float] = {}
        for one in self.set:
            for name, array in self.probe(one).inputs.items():
                if array.dtype.kind == "f" and array.size:
                    most = float(np.abs(array).max())
                    found[name] = max(found.get(name, 0.0), most if math.isfinite(most) else 0.0)
        return found

    def write(self, name: str, probe: Probe) -> Path:
        """A probe beside the list: the worst one, its smallest form."""
        return probe.save(self._folder / name)
