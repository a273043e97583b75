"""The outcome of a self-test: which faults were put in, and what the gate made of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ...adapter import BackendInfo
from ...document import Document
from ...jsonable import Later
from ...result import RunVerdict

Outcome = Literal["placed", "misplaced", "hidden", "missed", "no_effect", "not_built"]
"""Caught and placed right; caught and placed wrong; missed below the yardstick's noise, which is
honest; missed above it, which must not happen; nothing to see; the faulty model could not run."""


@dataclass(frozen=True)
class Trial:
    """One fault and what became of it."""

    kind: str
    target: str
    description: str
    points: tuple[str, ...]
    structural: bool
    outcome: Outcome
    right: str | None = None
    effect: float = 0.0
    """In float64, at the right point, relative to the state (L2)."""
    excess: float = 0.0
    """The effect over what honest arithmetic is allowed there, in the norm where it is largest."""
    verdict: RunVerdict | None = None
    first_divergence: str | None = None
    root_cause: str | None = None
    note: str = ""

    @property
    def caught(self) -> bool:
        return self.outcome in ("placed", "misplaced")

    @property
    def counted(self) -> bool:
        return self.outcome not in ("no_effect", "not_built")

    @property
    def owed(self) -> bool:
        """Whether the gate must catch it and place it right."""
        return self.counted and self.excess > 1


@dataclass(frozen=True)
class Count:
    """How the faults of one kind fared."""

    kind: str
    injected: int
    caught: int
    placed: int
    hidden: int
    missed: int
    no_effect: int
    not_built: int

    @classmethod
    def of(cls, kind: str, trials: Iterable[Trial]) -> Count:
        ours = Counter(trial.outcome for trial in trials if trial.kind == kind)
        names: tuple[Outcome, ...] = ("placed", "hidden", "missed", "no_effect", "not_built")
        injected = ours.total() - ours["no_effect"] - ours["not_built"]
        caught = ours["placed"] + ours["misplaced"]
        return cls(kind, injected, caught, *(ours[name] for name in names))


Answer = Literal["caught", "unverified", "missed", "accused", "misplaced", "cleared", "not_built"]
"""What the gate made of a lie: the fault was found, at the right side and layer; the run was
`unverified`; it passed, which must not happen; a side that is right was called wrong; the right
side was named, but not the layer; nobody was wrong, and it passed; the lie could not be told."""
FAILED: tuple[Answer, ...] = ("missed", "accused", "misplaced")


@dataclass(frozen=True)
class TrustedTrial:
    """One fault in what the gate trusts, and what became of it."""

    kind: str
    description: str
    wrong: Literal["candidate", "reference", "both", "nobody"]
    answer: Answer
    points: tuple[str, ...] = ()
    verdict: RunVerdict | None = None
    at_fault: str | None = None
    first_divergence: str | None = None
    root_cause: str | None = None
    note: str = ""


@dataclass(frozen=True)
class TrustedCount:
    """How the gate fared with one kind of lie."""

    kind: str
    told: int
    caught: int
    """`cleared` counts with it: where nobody is wrong, a pass is right."""
    unverified: int
    failed: int
    not_built: int

    @classmethod
    def of(cls, kind: str, trials: Iterable[TrustedTrial]) -> TrustedCount:
        ours = Counter(trial.answer for trial in trials if trial.kind == kind)
        return cls(
            kind,
            told=ours.total() - ours["not_built"],
            caught=ours["caught"] + ours["cleared"],
            unverified=ours["unverified"],
            failed=sum(ours[answer] for answer in FAILED),
            not_built=ours["not_built"],
        )


@dataclass(frozen=True)
class Sensitivity:
    """What the gate sees at one point, as effects relative to the state (L2)."""

    point: str
    faults: int
    smallest_caught: float | None
    largest_missed: float | None
    limit: float
    """Where plain L2 noise ends; other norms see smaller effects that are concentrated."""


@dataclass(frozen=True)
class TrustedShares:
    told: int
    caught: int
    unverified: int
    failed: int


@dataclass(frozen=True)
class Shares:
    """The counts that are the point of it all."""

    exit_code: int
    injected: int
    caught: int
    placed: int
    above_noise: int
    above_noise_placed: int
    trusted: TrustedShares


@dataclass(frozen=True, kw_only=True)
class SelfTest(Document):
    """The outcome of a self-test: numbers and names, wholly JSON-able."""

    kind: ClassVar[str] = "selftest"
    WRITTEN: ClassVar[Mapping[str, str]] = {"summary": "summary"}
    environment: Later[Mapping[str, str]] = field(default_factory=dict)
    notes: Later[tuple[str, ...]] = ()
    probe: str
    candidate: BackendInfo
    seed: int
    k: float
    trials: tuple[Trial, ...]
    kinds: tuple[Count, ...]
    layers: tuple[Sensitivity, ...]
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    """Kinds this model has no place for, and why."""
    seconds: float = 0.0
    trusted: tuple[TrustedTrial, ...] = ()
    """Faults in what the gate trusts: reference, truth, yardstick, cache, mask, dtype, outputs."""
    trusted_kinds: tuple[TrustedCount, ...] = ()

    @property
    def counted(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.counted)

    @property
    def owed(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.owed)

    @property
    def failures(self) -> tuple[Trial, ...]:
        """Faults above the noise that were missed or placed wrong."""
        return tuple(trial for trial in self.owed if trial.outcome != "placed")

    @property
    def trusted_failures(self) -> tuple[TrustedTrial, ...]:
        """Lies that the gate believed, or for which it called somebody wrong who is not."""
        return tuple(trial for trial in self.trusted if trial.answer in FAILED)

    @property
    def exit_code(self) -> int:
        if self.failures or self.trusted_failures:
            return 1
        return 0 if self.counted else 3

    @property
    def summary(self) -> Shares:
        counted, owed = self.counted, self.owed
        names = ("told", "caught", "unverified", "failed")
        return Shares(
            self.exit_code,
            len(counted),
            sum(trial.caught for trial in counted),
            sum(trial.outcome == "placed" for trial in counted),
            len(owed),
            sum(trial.outcome == "placed" for trial in owed),
            TrustedShares(*(sum(getattr(row, n) for row in self.trusted_kinds) for n in names)),
        )
