"""Judging repeats: the same work again and again, every state the same to the last bit.

No single repeat is trusted. The first two that agree in every state are the reference; what came
before and differs is held against them then, what comes later as it comes. So a flip in the very
first repeat is found in the first repeat, and not in all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .result import Case, Check, Flip, Mismatch, Verdict, worst_verdict

States = Mapping[str, Any]
"""Tensors by name, in order of execution; the harness does not look into them."""
Difference = tuple[int, int, tuple[Flip, ...]]
"""Elements that differ, of how many, the first few exactly."""
Differences = Callable[[Any, Any, str], Difference]
"""The difference of two sets of states at one of them."""

MOST_LISTED = 20
MOST_PENDING = 4
"""Repeats of which no two agreed, and whose states are kept."""


@dataclass
class _Seen:
    repeat: int
    digests: Mapping[str, str]
    states: States | None
    at: float
    core: int | None


@dataclass
class Tally:
    """What the repeats of one case gave."""

    check: str
    case: str
    differences: Differences
    core: int | None = None
    by_design: tuple[str, ...] = ()
    """Operations that are not deterministic here, as the framework itself says."""
    repeats: int = 0
    unlisted: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    _pending: list[_Seen] = field(default_factory=list)
    _reference: _Seen | None = None

    def add(self, digests: Mapping[str, str], states: States, at: float, core: int | None) -> bool:
        """Take one repeat in; whether it agrees with what is known so far."""
        seen = _Seen(self.repeats, digests, states, at, core)
        self.repeats += 1
        if self._reference is not None:
            if digests == self._reference.digests:
                return True
            self._differs(self._reference, seen)
            return False
        same = next((old for old in self._pending if old.digests == digests), None)
        if same is None:
            if len(self._pending) >= MOST_PENDING:
                seen.states = None
            self._pending.append(seen)
            del self._pending[MOST_PENDING * 16 :]
            return len(self._pending) == 1
        same.states = states
        self._reference = same
        for old in self._pending:
            if old is not same:
                self._differs(same, old)
        self._pending.clear()
        return True

    @property
    def digests(self) -> Mapping[str, str]:
        """What the reference gave; empty while no two repeats agree."""
        if self._reference is not None:
            return self._reference.digests
        return self._pending[0].digests if self.repeats == 1 and self._pending else {}

    @property
    def states(self) -> States | None:
        """The reference's states; of a single repeat its own."""
        if self._reference is not None:
            return self._reference.states
        return self._pending[0].states if len(self._pending) == 1 else None

    def finish(self) -> Case:
        """The case as it stands; it may be asked for at any time."""
        if self._reference is None and len(self._pending) > 1:
            first, *others = self._pending
            for old in others:
                self._differs(first, old, "no two repeats agree: which one is right is not known")
            self._pending.clear()
        found = len(self.mismatches) + self.unlisted
        verdict, note = self._judged(found)
        digest = combined(self.digests)
        return Case(self.case, verdict, self.repeats, digest, note=note, core=self.core)

    def _judged(self, found: int) -> tuple[Verdict, str]:
        if self.repeats < 2:
            return "not comparable", f"{self.repeats} repeat: nothing to compare it with"
        if found and self.by_design:
            named = ", ".join(self.by_design[:3])
            return "not comparable", (
                f"{found} of {self.repeats} repeats differ, by design: torch says that {named} is "
                "not deterministic on this device"
            )
        if found:
            return "fault", f"{found} of {self.repeats} repeats differ"
        return "no fault found", ""

    def _differs(self, right: _Seen, wrong: _Seen, note: str = "") -> None:
        if len(self.mismatches) >= MOST_LISTED:
            self.unlisted += 1
            return
        names = [n for n, text in wrong.digests.items() if right.digests.get(n) != text]
        state = names[0] if names else "?"
        found: Difference = (0, 0, ())
        if right.states is not None and wrong.states is not None and names:
            found = self.differences(right.states, wrong.states, state)
            if not found[0]:
                note = "the bits agree and their digests do not: the sums were formed wrongly"
        later = len(names) - 1
        told = [note, f"and {later} later state(s) that follow from it" if later > 0 else ""]
        self.mismatches.append(
            Mismatch(
                *(self.check, self.case, state, wrong.repeat, wrong.at, *found),
                core=wrong.core,
                note="; ".join(filter(None, told)),
            )
        )


def combined(digests: Mapping[str, str]) -> str:
    """One digest of several."""
    import hashlib

    if not digests:
        return ""
    text = "\n".join(f"{name} {digest}" for name, digest in digests.items())
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Findings:
    """What a check has found so far: it can be cut off at any time, and told as it stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[Case] = []
        self.mismatches: list[Mismatch] = []
        self.cells: list[Any] = []
        self.digests: dict[str, str] = {}
        self.notes: list[str] = []
        self.unlisted = 0
        self.verdict: Verdict | None = None
        """Set where the cases alone do not decide."""

    def take(self, tally: Tally, worst: float | None = None, seconds: float = 0.0) -> Case:
        """A case that has come to its end."""
        case = replace(tally.finish(), worst=worst, seconds=seconds)
        self.cases.append(case)
        self.unlisted += tally.unlisted
        if case.verdict == "fault":
            for found in tally.mismatches:
                self.add(found)
        else:
            name = f"{self.name} | {tally.case}"
            self.digests |= {f"{name} | {state}": d for state, d in tally.digests.items()}
        return case

    def add(self, mismatch: Mismatch) -> None:
        if len(self.mismatches) < 4 * MOST_LISTED:
            self.mismatches.append(mismatch)
        else:
            self.unlisted += 1

    def told(self, sentence: str, seconds: float) -> Check:
        verdict = self.verdict or worst_verdict(
            [case.verdict for case in self.cases] + ["fault"] * bool(self.mismatches)
        )
        return Check(
            self.name,
            verdict,
            sentence,
            tuple(self.cases),
            tuple(self.mismatches),
            tuple(self.cells),
            seconds,
            self.unlisted,
        )
