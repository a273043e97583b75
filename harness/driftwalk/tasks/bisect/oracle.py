"""A setting as a question: the candidate with some switches off, one run, judged at one point.

Truth, yardstick and allowances are those of the verification: a question costs one trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...adapter import Backend, HasSwitches
from ...errors import DriftwalkError
from ...layer_drift import LayerDrift
from ...meeting import Rows
from ...names import is_output
from ...progress import Progress
from ...switches import Switch
from .result import Question, Reading
from .search import StoppedError

MOST_NAMES = 20
"""Other points that drift, of which so many are named."""


@dataclass(frozen=True)
class Limits:
    """When a search ends, done or not."""

    runs: int | None = None
    minutes: float | None = None
    start: float = field(default_factory=time.monotonic)

    def check(self, runs: int) -> None:
        if self.runs is not None and runs >= self.runs:
            raise StoppedError(f"all {self.runs} runs that were allowed are used up")
        if self.minutes is not None and time.monotonic() - self.start >= 60 * self.minutes:
            raise StoppedError(f"the time that was allowed, {self.minutes:g} minutes, is over")


@dataclass
class Oracle:
    """Runs a candidate with switches off, and keeps an account of it."""

    candidate: Backend
    rows: Rows
    point: str
    switches: Sequence[Switch]
    limits: Limits
    show: Progress
    stored: Mapping[frozenset[str], Question] = field(default_factory=dict)
    """What an earlier search was told: its runs need not be run again."""
    keep: Callable[[Sequence[Question]], None] | None = None
    """Is given all questions so far, after each run."""
    questions: dict[frozenset[str], Question] = field(default_factory=dict)
    runs: int = 0
    _last: tuple[tuple[str, ...], Backend] | None = None
    """The setting that was run last, still open."""

    def begin(self, rows: Sequence[LayerDrift]) -> None:
        """The run of the verification is the first, with all switches on."""
        reading, elsewhere = read(rows, self.point)
        self.questions[frozenset()] = Question((), (reading,), elsewhere)

    def draw(self, off: frozenset[str]) -> bool:
        """One more run with these off: whether it drifts."""
        asked = self.questions.get(off, Question(self._ordered(off), ()))
        known = self.stored[off].runs if off in self.stored else ()
        if len(asked.runs) < len(known):
            reading, elsewhere = known[len(asked.runs)], self.stored[off].elsewhere
        else:
            reading, elsewhere = self._run(asked.off)
        self.questions[off] = Question(asked.off, (*asked.runs, reading), elsewhere)
        if self.keep is not None:
            self.keep(tuple(self.questions.values()))
        return reading.bad

    def _ordered(self, off: Iterable[str]) -> tuple[str, ...]:
        names = [name for switch in self.switches for name in (switch.name, *switch.parts)]
        return tuple(name for name in dict.fromkeys(names) if name in set(off))

    def _run(self, off: tuple[str, ...]) -> tuple[Reading, tuple[str, ...]]:
        self.limits.check(self.runs)
        self.runs += 1
        text = f"run {self.runs}: {len(off)} of {len(self.switches)} switches off"
        try:
            with self.show.stage(text, extra=True):
                return self._judged(off)
        except DriftwalkError as error:
            return Reading(math.inf, math.inf, bad=True, failed=str(error)), ()
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None

    def _judged(self, off: tuple[str, ...]) -> tuple[Reading, tuple[str, ...]]:
        candidate = self.candidate
        if not off:
            return read(self.rows(candidate), self.point)
        if self._last is None or self._last[0] != off:
            self.close()
            assert isinstance(candidate, HasSwitches)
            self._last = off, candidate.without(off)
        return read(self.rows(self._last[1]), self.point)

    def close(self) -> None:
        if self._last is not None:
            self._last[1].close()
        self._last = None


def read(rows: Sequence[LayerDrift], point: str) -> tuple[Reading, tuple[str, ...]]:
    """What a run gives at a point, and the names of others that drift.

    Where a run does not have that point, the worst of its outputs stands for it.
    """
    row = next((row for row in rows if row.point.name == point and row.metrics is not None), None)
    if row is None:
        ends = [row for row in rows if is_output(row.point.name)] or list(rows[-1:])
        row = max(ends, key=_used)
    others = (one.point.name for one in rows if one is not row and is_bad(one))
    return (
        Reading(_used(row), _error(row), is_bad(row)),
        tuple(others)[:MOST_NAMES],
    )


def is_bad(row: LayerDrift) -> bool:
    """Whether a point drifts by the candidate's doing."""
    return not row.ok and (not row.sides or "candidate" in row.sides_at_fault)


def _used(row: LayerDrift) -> float:
    allowed = row.sides.get("candidate", row.tolerance)
    if row.verdict in ("nonfinite", "shape") or allowed is None:
        return 0.0 if row.ok else math.inf
    return allowed.needed


def _error(row: LayerDrift) -> float:
    if row.truth is not None and row.truth.scale > 0:
        return row.truth.candidate / row.truth.scale
    return row.metrics.rel_l2 if row.metrics is not None else math.inf
