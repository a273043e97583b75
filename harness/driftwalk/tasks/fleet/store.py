"""The results folder: each job's answer in a file of its own, written the moment it is there.

A file is believed only if it is the answer to the very question that is asked now, is whole, and
can still be read; anything else is run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...document import FLEET_JOB as KIND
from ...errors import DriftwalkError
from ...files import read_json, write_atomically
from ...json_tables import to_text
from ...jsonable import decode, encode
from .job import Job, Place
from .result import Attempt, Finding, Record

JOBS = "jobs"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Stored:
    """All of a file but the answer itself."""

    kind: str
    schema_version: int
    job: Job
    place: Place
    attempts: tuple[Attempt, ...]
    sha256: str
    code: int


@dataclass(frozen=True)
class Store:
    """One folder of results."""

    folder: Path
    read: Callable[[Job, Any, int], Finding]
    """Makes a finding of a job's JSON result and exit code, or raises a DriftwalkError."""

    def path(self, job: Job) -> Path:
        return self.folder / JOBS / f"{job.id}.json"

    @property
    def used(self) -> bool:
        """Whether an earlier run has left results here."""
        return any((self.folder / JOBS).glob("*.json"))

    def save(
        self, job: Job, place: Place, attempts: Sequence[Attempt], result: Any, code: int
    ) -> Record:
        """Keep an answer, and say what it was; raises, and keeps nothing, if it is none."""
        finding = self.read(job, result, code)
        head = Stored(KIND, SCHEMA_VERSION, job, place, tuple(attempts), _hash(result), code)
        path = write_atomically(self.path(job), to_text(encode(head) | {"result": result}))
        name = f"{JOBS}/{path.name}"
        return Record(job.id, job, "done", place, head.attempts, finding, name)

    def load(self, job: Job) -> Record | None:
        """The answer of an earlier run; None where there is none that can be believed."""
        path = self.path(job)
        try:
            data = read_json(path)
            head = decode(Stored, data, "fleet job")
            result = data["result"]
            asked = (head.kind, head.schema_version, head.job) == (KIND, SCHEMA_VERSION, job)
            if not asked or head.sha256 != _hash(result):
                return None
            finding = self.read(job, result, head.code)
        except (DriftwalkError, KeyError, ValueError, RecursionError):
            return None
        name = f"{JOBS}/{path.name}"
        return Record(job.id, job, "done", head.place, head.attempts, finding, name, resumed=True)


def _hash(result: Any) -> str:
    text = json.dumps(result, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
