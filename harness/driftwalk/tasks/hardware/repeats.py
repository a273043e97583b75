"""Judging repeats: the same work again and again, every state the same to the last bit.

No single repeat is trusted. The first two that agree in every state are the reference; what came
before and differs is compared with them then, what comes later as it comes. So a flip in the very
first repeat is found in the first repeat, and not in all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .result import Case, Cell, Check, Difference, Mismatch, Verdict, worst_verdict

States = Mapping[str, Any]
"""Tensors by name, in order of execution; the harness does not look into them."""
NOT_LOCATED: Difference = (0, 0, ())

MOST_LISTED = 20
MOST_KEPT = 4
"""Repeats of which no two agreed, and whose states are kept."""
MOST_DISTINCT = 64
"""The same, whose digests are kept."""


@dataclass
class _Repeat:
    number: int
    digests: Mapping[str, str]
    states: States | None
    at: float
    core: int | None


@dataclass
class Tally:
    """What the repeats of one case gave."""

    check: str
    case: str
    differences: Callable[[Any, Any, str], Difference]
    """The difference of two sets of states at one of them."""
    core: int | None = None
    by_design: tuple[str, ...] = ()
    """Operations that are not deterministic here, as the framework itself says."""
    repeats: int = 0
    seconds: float = 0.0
    unlisted: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    _distinct: list[_Repeat] = field(default_factory=list)
    """One repeat for each set of bits, until two agree; then the reference alone."""
    _reference: _Repeat | None = None

    def add(self, digests: Mapping[str, str], states: States, at: float, core: int | None) -> bool:
        """Take one repeat in; whether it agrees with one before it."""
        new = _Repeat(self.repeats, digests, states, at, core)
        self.repeats += 1
        same = next((old for old in self._distinct if old.digests == digests), None)
        if self._reference is not None:
            if same is None:
                self._differs(self._reference, new)
        elif same is not None:
            same.states = states
            for old in self._distinct:
                if old is not same:
                    self._differs(same, old)
            self._reference, self._distinct = same, [same]
        elif len(self._distinct) < MOST_DISTINCT:
            if len(self._distinct) >= MOST_KEPT:
                new.states = None
            self._distinct.append(new)
        return same is not None or self.repeats == 1

    @property
    def right(self) -> _Repeat | None:
        """The reference; of a single repeat itself; None while no two agree."""
        return self._reference or (self._distinct[0] if self.repeats == 1 else None)

    @property
    def digests(self) -> Mapping[str, str]:
        return self.right.digests if self.right else {}

    @property
    def states(self) -> States | None:
        return self.right.states if self.right else None

    def finish(self) -> Case:
        """The case as it stands; it may be asked for at any time."""
        if self._reference is None and len(self._distinct) > 1:
            first, *others = self._distinct
            for old in others:
                self._differs(first, old, "no two repeats agree: which one is right is not known")
            self._distinct.clear()
        differing = len(self.mismatches) + self.unlisted
        verdict: Verdict = "fault" if differing else "no fault found"
        note = f"{differing} of {self.repeats} repeats differ" if differing else ""
        if self.repeats < 2:
            verdict = "not comparable"
            note = f"{self.repeats} repeat: nothing to compare it with"
        elif differing and self.by_design:
            verdict = "not comparable"
            names = ", ".join(self.by_design[:3])
            note += f", by design: torch says that {names} is not deterministic on this device"
        text = "\n".join(f"{name} {digest}" for name, digest in self.digests.items())
        digest = hashlib.sha256(text.encode()).hexdigest()[:32] if text else ""
        made = Case(self.case, verdict, self.repeats, digest, note=note, core=self.core)
        return replace(made, seconds=self.seconds)

    def _differs(self, right: _Repeat, wrong: _Repeat, note: str = "") -> None:
        if len(self.mismatches) >= MOST_LISTED:
            self.unlisted += 1
            return
        names = [n for n, text in wrong.digests.items() if right.digests.get(n) != text]
        state = names[0] if names else "?"
        difference = NOT_LOCATED
        if right.states is not None and wrong.states is not None and names:
            difference = self.differences(right.states, wrong.states, state)
            if not difference[0]:
                note = "the bits agree and their digests do not: the sums were formed wrongly"
        later = len(names) - 1
        notes = [note, f"and {later} later state(s) that follow from it" if later > 0 else ""]
        self.mismatches.append(
            Mismatch(
                *(self.check, self.case, state, wrong.number, wrong.at, *difference),
                core=wrong.core,
                note="; ".join(filter(None, notes)),
            )
        )


@dataclass
class Findings:
    """What a check has found so far: it can be cut off at any time, and reported as it stands."""

    name: str
    cases: list[Case] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    unlisted: int = 0
    verdict: Verdict | None = None
    """Set where the cases alone do not decide."""

    @property
    def faulty(self) -> list[str]:
        return [case.name for case in self.cases if case.verdict == "fault"]

    def take(self, tally: Tally, worst: float | None = None) -> Case:
        """A case that has come to its end."""
        case = replace(tally.finish(), worst=worst)
        self.cases.append(case)
        self.unlisted += tally.unlisted
        if case.verdict == "fault":
            for mismatch in tally.mismatches:
                self.add(mismatch)
        else:
            name = f"{self.name} | {tally.case}"
            self.digests |= {f"{name} | {state}": d for state, d in tally.digests.items()}
        return case

    def add(self, mismatch: Mismatch) -> None:
        if len(self.mismatches) < 4 * MOST_LISTED:
            self.mismatches.append(mismatch)
        else:
            self.unlisted += 1

    def summed_up(self, sentence: str, seconds: float) -> Check:
        verdict = self.verdict or worst_verdict(
            [case.verdict for case in self.cases] + ["fault"] * bool(self.mismatches)
        )
        lists = (tuple(self.cases), tuple(self.mismatches), tuple(self.cells))
        return Check(self.name, verdict, sentence, *lists, seconds, self.unlisted)
