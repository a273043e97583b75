"""What a fleet said: every job and what became of it, who stands alone, where nodes differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from ...document import Document
from ...jsonable import Later
from .job import Job, JobKind, Place

Verdict = Literal["pass", "fault", "unsure"]
"""Nothing wrong was found; something wrong was; it could not be told."""
Status = Literal["done", "failed", "timeout", "lost", "not run"]


@dataclass(frozen=True)
class Check:
    """One thing that a job looked at: a column of the matrix."""

    name: str
    verdict: Verdict
    said: str = ""


@dataclass(frozen=True)
class Finding:
    """A job's own result, in the words that all kinds of jobs share."""

    verdict: Verdict
    said: str
    checks: tuple[Check, ...] = ()
    device: str = ""
    """The model of the device."""
    patterns: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the bits that were computed, by what was computed."""
    basis: Mapping[str, str] = field(default_factory=dict)
    """What must agree between two places for their bits to be comparable at all."""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """One try of a job at one place."""

    place: str
    ending: Status
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Record:
    """A job and what became of it."""

    id: str
    job: Job
    status: Status
    place: Place | None = None
    """Where it was done, or tried last."""
    attempts: tuple[Attempt, ...] = ()
    finding: Finding | None = None
    file: str = ""
    """Where its own result lies, below the results folder."""
    page: str = ""
    """The page of that result, likewise."""
    resumed: bool = False
    """Done in an earlier run, and not again."""
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.finding.verdict if self.status == "done" and self.finding else "unsure"

    @property
    def seconds(self) -> float:
        return self.attempts[-1].seconds if self.attempts else 0.0


@dataclass(frozen=True)
class Outlier:
    """A place whose bits most places like it contradict."""

    place: str
    device: str
    patterns: tuple[str, ...]
    """What it computed otherwise, in the order of computation."""
    like: int
    """Places of the same kind that gave the majority's bits, where it is smallest."""
    of: int
    """All places of that kind, itself included."""


@dataclass(frozen=True)
class Split:
    """Places of one kind that contradict each other, and no side has a majority."""

    device: str
    pattern: str
    sides: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Difference:
    """Something of the environment that is not the same on all nodes."""

    key: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    """A value and the nodes that have it, the largest group first."""


@dataclass(frozen=True, kw_only=True)
class FleetReport(Document):
    """What `fleet` returns: numbers and names, wholly JSON-able."""

    kind: ClassVar[str] = "fleet"
    WRITTEN: ClassVar[Mapping[str, str]] = {n: n for n in ("verdict", "exit_code", "wrong")}
    model: Later[Mapping[str, str]] = field(default_factory=dict)
    """Empty: every job has its own."""
    task: JobKind
    cluster: str
    records: tuple[Record, ...]
    outliers: tuple[Outlier, ...] = ()
    splits: tuple[Split, ...] = ()
    alone: tuple[str, ...] = ()
    """Places that no other place can be held against."""
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0
    complete: bool = True
    """False where the run was interrupted."""

    def placed(self, folder: Path) -> Self:
        kept = (r if (folder / r.page).is_file() else replace(r, page="") for r in self.records)
        return replace(self, records=tuple(kept))

    @property
    def faults(self) -> tuple[Record, ...]:
        """Jobs whose own result says that something is wrong."""
        return tuple(record for record in self.records if record.verdict == "fault")

    @property
    def unsure(self) -> tuple[Record, ...]:
        """Jobs that did not come back, or could not tell."""
        return tuple(record for record in self.records if record.verdict == "unsure")

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of the places that compute wrongly, as far as a place is to blame."""
        own = [record.place.name for record in self.faults if record.place is not None]
        named = own if self.task == "hwcheck" else []
        return tuple(dict.fromkeys([*named, *(outlier.place for outlier in self.outliers)]))

    @property
    def verdict(self) -> Verdict:
        if self.faults or self.outliers or self.splits:
            return "fault"
        return "unsure" if self.unsure or not self.records or not self.complete else "pass"

    @property
    def exit_code(self) -> int:
        return {"pass": 0, "fault": 1, "unsure": 3}[self.verdict]
