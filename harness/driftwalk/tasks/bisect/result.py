"""What `bisect` found, frozen: numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...document import Document
from ...jsonable import Later, Size
from ...result import PolicyInfo, ProbeInfo, RunVerdict
from ...states import BackendInfo
from ...switches import Switch
from .search import Cause

Outcome = Literal["nothing", "found", "none", "no switches", "reference", "unverified", "stopped"]
"""nothing: there is no drift. none: it is there with all switches off, too. reference: that is at
fault. stopped: the search had to end before it was done."""


@dataclass(frozen=True)
class Reading:
    """One run of the candidate, at the point that is judged."""

    used: Size
    """How many times what is allowed its error was; above 1 is drift."""
    error: Size
    """Relative (L2): to the truth, or to the reference where there is no truth."""
    bad: bool
    failed: str = ""
    """Why there are no numbers: it could not run so."""


@dataclass(frozen=True)
class Question:
    """Some switches off: what the runs gave."""

    off: tuple[str, ...]
    runs: tuple[Reading, ...]
    elsewhere: tuple[str, ...] = ()
    """Other points that drifted in the last of them."""

    @property
    def bad(self) -> bool:
        return any(run.bad for run in self.runs)

    @property
    def worst(self) -> Reading:
        return max(self.runs, key=lambda run: run.used)


@dataclass(frozen=True)
class Environment:
    """A verification in an environment of its own."""

    name: str
    verdict: RunVerdict
    packages: Mapping[str, str]
    """Versions, of packages that differ between environments; empty where one is not there."""
    reading: Reading | None = None
    """At the point that is judged, where it has that."""


@dataclass(frozen=True, kw_only=True)
class Bisection(Document):
    """What `bisect` returns."""

    kind: ClassVar[str] = "bisect"
    reference: BackendInfo
    candidate: BackendInfo
    probe: ProbeInfo
    verdict: RunVerdict
    """Of the candidate as it is."""
    outcome: Outcome
    policy: Later[PolicyInfo | None] = None
    """What the runs were judged by."""
    reason: str = ""
    """Why nothing was found, or nothing more."""
    point: str = ""
    """Where it was judged: the root cause of the drift, if not said otherwise."""
    switches: tuple[str, ...] = ()
    """The smallest set of switches that makes the drift go away; none of it can be left out."""
    causes: tuple[Cause, ...] = ()
    """For each of these: whether it does harm alone, or which others must be on for that."""
    spec: str = ""
    """The candidate with them turned off: what to run instead."""
    searched: tuple[Switch, ...] = ()
    questions: tuple[Question, ...] = ()
    """All that was asked, in order; the first is the candidate as it is."""
    runs: int = 0
    """Of the candidate, beyond that of the verification."""
    rate: Size = 1.0
    """Of runs of the candidate as it is, the share that drifted."""
    confidence: Size = 1.0
    """That the right switches are named, where runs disagree; 1 where they all agreed."""
    seconds: Size = 0.0
    environments: tuple[Environment, ...] = ()
    """The good one and the bad one, where two were given to compare versions."""

    @property
    def packages(self) -> tuple[tuple[str, str, str], ...]:
        """Packages that differ: name, version in the good environment, and in the bad one."""
        if len(self.environments) < 2:
            return ()
        good, bad = (one.packages for one in self.environments[:2])
        return tuple((name, good.get(name, ""), bad.get(name, "")) for name in bad)

    def asked(self, off: tuple[str, ...]) -> Question | None:
        """What was found with these off, and no others."""
        wanted = set(off)
        return next((one for one in self.questions if set(one.off) == wanted), None)

    @property
    def before(self) -> Reading | None:
        """As the candidate is."""
        found = self.asked(())
        return found.worst if found is not None else None

    @property
    def after(self) -> Reading | None:
        """With the switches off."""
        found = self.asked(self.switches) if self.switches else None
        return found.worst if found is not None else None

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Points that still drift with the switches off: another fault."""
        found = self.asked(self.switches) if self.switches else None
        return found.elsewhere if found is not None else ()

    @property
    def steady(self) -> bool:
        """Whether all runs of one setting agreed."""
        return self.confidence == 1.0

    @property
    def ok(self) -> bool:
        return self.outcome == "nothing"

    @property
    def exit_code(self) -> int:
        codes = {"nothing": 0, "unverified": 3, "reference": 3}
        return codes.get(self.outcome, 1)
