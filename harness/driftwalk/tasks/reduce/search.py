"""The smallest of something that still holds; knows no model, asks a callable.

    fewest      items of which none can be taken away, by delta debugging (ddmin)
    least       the smallest number, by halving
    Allowance   how long a search may go on; what was found so far is kept
    Search      an earlier end, fewer parts, shorter axes, plainer values, in this order

All that is asked is whether something holds. Nothing is believed of it beyond what was asked: it
need not be monotone, and what is given back was itself seen to hold.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from ..constants import (
    CAUSE_SHARE,
    ODD_AXIS_SIZES,
    RATIO_FADES,
    RATIO_LEFT,
    RATIO_LEFT_OF_SHORT,
    SHORT_AXIS,
)

T = TypeVar("T")


class SpentError(Exception):
    """The allowance of a search is used up."""


class Allowance:
    """So many questions, and so many minutes."""

    def __init__(
        self,
        runs: int | None = None,
        minutes: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = math.inf if runs is None else runs
        self._clock = clock
        self._end = math.inf if minutes is None else clock() + 60 * minutes
        self.runs = 0

    def take(self) -> None:
        """One more question; raises where there is none left."""
        if self.runs >= self._most or self._clock() >= self._end:
            raise SpentError
        self.runs += 1


def fewest(items: Sequence[T], holds: Callable[[Sequence[T]], bool]) -> Iterator[list[T]]:
    """Ever fewer items, each time some that hold; the last of them cannot lose any one of them.

    Zeller and Hildebrandt's ddmin without its first half: pieces are taken away, half of all at
    first, then ever smaller ones.
    """
    kept = list(items)
    pieces = 2
    while kept:
        size = math.ceil(len(kept) / pieces)
        smaller = _less(kept, size, holds)
        if smaller is not None:
            kept = smaller
            pieces = max(2, pieces - 1)
            yield list(kept)
        elif size == 1:
            return
        else:
            pieces = min(len(kept), 2 * pieces)


def _less(items: Sequence[T], size: int, holds: Callable[[Sequence[T]], bool]) -> list[T] | None:
    for begin in range(0, len(items), size):
        left = [*items[:begin], *items[begin + size :]]
        if holds(left):
            return left
    return None


def least(most: int, holds: Callable[[int], bool]) -> int:
    """The smallest number, from one on, that is found to hold by halving; `most` holds already.

    1 is asked first, then every half of what holds, then what lies between.
    """
    low, high = 0, most
    if most > 1 and holds(1):
        return 1
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


# ---- the whole search ----


class Shows(Protocol):
    """Something that shows a drift."""

    @property
    def share(self) -> float:
        """Of the drift at the guilty point, what this one is the cause of."""

    @property
    def ratio(self) -> float:
        """How large its drift is."""

    @property
    def size(self) -> tuple[int, int, int]:
        """Nodes, the longest axis, and all values: the smaller, the better."""


S = TypeVar("S", bound=Shows)


class Shrinks(Protocol[S]):
    """Smaller forms of something, each given back only where it shows the same drift."""

    def ends(self, state: S) -> Sequence[str]:
        """Places before its end, in order of execution."""

    def ending(self, state: S, end: str) -> S | None:
        """As far as one of them."""

    def guess(self, state: S) -> Sequence[int]:
        """The parts that are likely to be enough; none where nothing is known."""

    def parts(self, state: S) -> Sequence[int]:
        """All parts."""

    def keeping(self, state: S, parts: Sequence[int]) -> S | None:
        """With some of its parts alone."""

    def idle(self, state: S) -> Sequence[int]:
        """Parts that give what they take, as it is."""

    def passing(self, state: S, part: int) -> S | None:
        """Without such a part: what it takes is handed on."""

    def lengths(self, state: S) -> Sequence[int]:
        """Of all its axes, the longest first."""

    def shortened(self, state: S, length: int, size: int) -> S | None:
        """With all axes of one length cut down to a size."""

    def plainer(self, state: S) -> Sequence[str]:
        """Ways to have other values: names, in the order to be tried."""

    def made_plain(self, state: S, how: str) -> S | None:
        """With other values."""


@dataclass
class Search(Generic[S]):
    """Goes from one form to a smaller one; the last is there whatever happens."""

    subject: Shrinks[S]
    state: S
    allowance: Allowance
    taken: Callable[[str, S], None] = lambda text, state: None
    """Is called with each step."""
    answers: str = ""
    """Those of an earlier search: what was no is not asked again."""
    asked: str = ""
    """All answers so far: 1 is yes, 0 is no."""
    steps: list[tuple[str, S]] = field(default_factory=list)
    finished: bool = False
    """Whether it came to its end; not where the allowance was spent, or somebody stopped it."""

    def __post_init__(self) -> None:
        # No finite drift is a tenth of an infinite one; each is asked about for itself.
        self._first = self.state.ratio if math.isfinite(self.state.ratio) else 0.0

    def run(self) -> bool:
        """Whether it came to its end."""
        try:
            self._end_earlier()
            self._fewer_parts()
            self._no_idle_parts()
            self._shorter()
            self._plainer()
            self._shorter()
        except (SpentError, KeyboardInterrupt):
            return False
        self.finished = True
        return True

    def _ask(self, make: Callable[[], S | None]) -> S | None:
        """One question; of an earlier search, only what was yes is made again."""
        place = len(self.asked)
        if place >= len(self.answers):
            self.allowance.take()
        found = None if self.answers[place : place + 1] == "0" else make()
        if place < len(self.answers) and (found is not None) != (self.answers[place] == "1"):
            self.answers = ""  # it was another search after all
        self.asked += "0" if found is None else "1"
        return found

    def _take(self, found: S | None, text: str, left: float = RATIO_LEFT) -> bool:
        if found is None or not found.ratio >= left * self._first:
            return False
        self.state = found
        self.taken(text, found)
        return True

    def _end_earlier(self) -> None:
        """The first place that is the cause of most of the drift; else that of the largest part."""
        best: S | None = None
        for end in self.subject.ends(self.state):
            found = self._ask(partial(self.subject.ending, self.state, end))
            if found is not None and found.share >= CAUSE_SHARE:
                self._take(found, f"as far as {end}")
                return
            if found is not None and (best is None or found.share > best.share):
                best = found
        self._take(best, "as far as the tensor that is the cause of most of it")

    def _fewer_parts(self) -> None:
        before = self.state
        if guess := self.subject.guess(before):
            found = self._ask(partial(self.subject.keeping, before, guess))
            self._take(found, "behind all that is right")

        def holds(parts: Sequence[int]) -> bool:
            found = self._ask(partial(self.subject.keeping, self.state, parts)) if parts else None
            return self._take(found, f"{len(parts)} of its nodes")

        for _ in fewest(self.subject.parts(self.state), holds):
            pass

    def _no_idle_parts(self) -> None:
        for part in self.subject.idle(self.state):
            found = self._ask(partial(self.subject.passing, self.state, part))
            self._take(found, "without a node that leaves all as it is")

    def _shorter(self) -> None:
        for length in self.subject.lengths(self.state):
            if length in self.subject.lengths(self.state):
                self._shorten(length)

    def _shorten(self, length: int) -> None:
        """Axes of one length: of the whole, or of what is left of it by then.

        Some drifts become smaller with an axis, step by step; each step is compared with the last.
        What is left must be RATIO_LEFT of the ratio, or fade no faster than the axis, down to
        SHORT_AXIS.
        """
        forms = [(self.state, length)]

        def holds(size: int) -> bool:
            is_short = forms[-1][1] <= SHORT_AXIS or size < ODD_AXIS_SIZES[-1]
            left = RATIO_LEFT_OF_SHORT if is_short else min(RATIO_LEFT, RATIO_FADES * size / length)
            for state, long in (forms[0], *forms[1:][-1:]):
                found = self._ask(partial(self.subject.shortened, state, long, size))
                if self._take(found, f"axes of {length} cut to {size}", left):
                    forms.append((self.state, size))
                    return True
            return False

        if least(length, holds) > SHORT_AXIS:
            any(holds(size) for size in ODD_AXIS_SIZES)

    def _plainer(self) -> None:
        done: set[str] = set()
        for how in self.subject.plainer(self.state):
            kind = how.partition(" ")[0]
            if kind in done:
                continue
            if self._take(self._ask(partial(self.subject.made_plain, self.state, how)), how):
                done.add(kind)
