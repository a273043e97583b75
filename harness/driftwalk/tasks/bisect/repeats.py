"""One answer of several runs, where the same setting is not always bad.

A run that is bad shows that a setting is; one that is not may have been lucky. So a candidate whose
runs disagree is asked again until luck is unlikely enough:

    ( 1 - p )^n  <=  ( 1 - confidence ) / questions

with p a lower bound of the share of bad runs, measured with all switches on. Whether runs disagree
is found out by REPEATS_AT_FIRST more runs with all switches on and REPEATS_AT_LAST with the cure.
A switch that was bad with all others off is guilty, whatever luck did. That several do harm only
together rests on runs that were good: REPEATS_IF_TOGETHER more runs with all switches on must then
have been bad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..constants import (
    MOST_REPEATS,
    REPEATS_AT_FIRST,
    REPEATS_AT_LAST,
    REPEATS_CONFIDENCE,
    REPEATS_IF_TOGETHER,
    RUNS_FOR_RATE,
    SPARE_QUESTIONS,
)
from .search import Found, StoppedError, search

Draw = Callable[[frozenset[str]], bool]
"""One run with these switches off: whether it was bad."""


class UnsteadyError(Exception):
    """A setting that was good is bad in another run: answers so far cannot be trusted."""


@dataclass
class Repeats:
    """Answers of a candidate, by as many runs each as its unsteadiness needs."""

    draw: Draw
    questions: int
    """How many will be asked, at most: each may go wrong."""
    confidence: float = REPEATS_CONFIDENCE
    times: int = 0
    """Runs for each question; 0: as many as it takes."""
    rate: float = 1.0
    """Share of bad runs with all switches on, as measured."""
    bound: float = 1.0
    """What it is at least, with the confidence."""
    seen: dict[frozenset[str], list[bool]] = field(default_factory=dict)

    @property
    def steady(self) -> bool:
        return self.bound == 1.0

    @property
    def needed(self) -> int:
        """Runs without anything bad that show that a setting is good."""
        if self.times:
            return self.times
        if self.steady:
            return 1
        chance = (1 - self.confidence) / 2 / max(1, self.questions)
        return min(MOST_REPEATS, math.ceil(math.log(chance) / math.log1p(-self.bound)))

    def begin(self) -> None:
        """Find out whether runs with all switches on agree; the first of them was bad."""
        everything_on = frozenset[str]()
        self.seen.setdefault(everything_on, [True])
        if self.times:
            return
        self._see(everything_on, 1 + REPEATS_AT_FIRST)
        if not all(self.seen[everything_on]):
            self.measure()

    def measure(self) -> None:
        """How often all switches on are bad."""
        runs = self._see(frozenset(), RUNS_FOR_RATE)
        # The first was chosen for being bad, and says nothing of how often that is.
        self.rate = sum(runs[1:]) / (len(runs) - 1)
        self.bound = lower_bound(sum(runs[1:]), len(runs) - 1, (1 - self.confidence) / 2)

    def bad(self, off: frozenset[str]) -> bool:
        """Whether it is bad with these off."""
        runs = self.seen.setdefault(off, [])
        while not any(runs) and len(runs) < self.needed:
            runs.append(self.draw(off))
        return any(runs)

    def confirm(self, found: Found) -> None:
        """Run it again; raises `UnsteadyError` where runs do not agree after all.

        What was seen to be bad on its own is proved. That several do harm only together rests on
        runs that were good, so that more is asked.
        """
        if self.times or not self.steady:
            return
        if not found.shown and not all(self._see(frozenset(), 1 + REPEATS_IF_TOGETHER)):
            raise UnsteadyError
        if any(self._see(frozenset(found.cure), REPEATS_AT_LAST)):
            raise UnsteadyError

    def _see(self, off: frozenset[str], times: int) -> list[bool]:
        runs = self.seen.setdefault(off, [])
        while len(runs) < times:
            runs.append(self.draw(off))
        return runs


def lower_bound(hits: int, of: int, chance: float) -> float:
    """The least share that gives so many hits, or more, with at least this chance."""
    if hits == 0:
        return 1 / (of + 1) / 2
    low, high = 0.0, hits / of
    for _ in range(60):
        middle = (low + high) / 2
        if at_least(hits, of, middle) < chance:
            low = middle
        else:
            high = middle
    return min(low, 1 - 1e-9)


def at_least(hits: int, of: int, share: float) -> float:
    """The chance of so many hits, or more."""
    terms: Sequence[float] = [
        math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(hits, of + 1)
    ]
    return math.fsum(terms)


def searched(
    switches: Sequence[str],
    repeats: Repeats,
    parts: Mapping[str, Sequence[str]] | None = None,
    needs: Mapping[str, Sequence[str]] | None = None,
) -> Found:
    """What a search finds with answers of as many runs as it takes.

    Where the cure of a candidate that was taken for a steady one does not hold in another run, the
    search begins anew; all runs so far count.
    """
    found = Found()
    try:
        repeats.begin()
        found = search(switches, repeats.bad, parts, needs)
        if found.cure and not found.why:
            repeats.confirm(found)
    except StoppedError as stopped:
        return replace(found, why=str(stopped))
    except UnsteadyError:
        try:
            repeats.measure()
        except StoppedError as stopped:
            return Found(why=str(stopped))
        return search(switches, repeats.bad, parts, needs)
    return found


def questions_for(switches: int) -> int:
    """How many questions a search over so many switches asks, as a rule."""
    return 2 * math.ceil(math.log2(max(2, switches))) + SPARE_QUESTIONS
