"""While a fleet works: a table that lives on a terminal, or a line for each thing that happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from driftwalk.tasks.fleet.cluster import Watcher
from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.result import Attempt, Record

from .console import STYLES, table
from .fleet import TONES, many
from .layout import SYMBOLS
from .numbers import clean, seconds

MOST_ROWS = 24


def _name(job: Job, place: str) -> str:
    return clean(job.label, 80) + ("" if place == job.label else f" at {clean(place, 60)}")


def _word(record: Record) -> str:
    said = record.finding.said if record.finding and record.verdict != "pass" else record.note
    word = record.verdict if record.status == "done" else record.status
    return f"{word}: {clean(said, 160)}" if said else word


class Lines(Watcher):
    """For a log: what ended, how, and how much is left."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._total = 0
        self._settled = 0

    def expect(self, jobs: Sequence[Job], done: Sequence[Record], places: Sequence[Place]) -> None:
        self._total, self._settled = len(jobs), len(done)
        earlier = f", {len(done)} of them done in an earlier run" if done else ""
        self._say(f"{many(len(jobs), 'job')}{earlier}; {many(len(places), 'place')} to run them.")

    def failed(self, job: Job, attempt: Attempt, again: bool) -> None:
        then = "; it is tried again" if again else ""
        reason = clean(attempt.reason, 200)
        self._say(f"{_name(job, attempt.place)}: {attempt.ending}: {reason}{then}")

    def ended(self, record: Record) -> None:
        self._settled += 1
        where = record.place.name if record.place else record.job.label
        took = f" ({seconds(record.seconds)})" if record.attempts else ""
        self._say(
            f"[{self._settled}/{self._total}] {SYMBOLS[TONES[record.verdict]]} "
            f"{_name(record.job, where)}: {_word(record)}{took}"
        )


@dataclass
class _Row:
    """One job, as it is now."""

    job: Job
    word: str = "waiting"
    style: str = "dim"
    where: str = ""
    since: float | None = None
    tries: int = 0
    rank: int = 2
    """Who runs stands first, then who has trouble, then who waits, then who is done."""


class LiveTable(Watcher):
    """For a terminal; `live` is rich's, and only drawn by us."""

    def __init__(self, live: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = live
        self._clock = clock
        self._rows: dict[str, _Row] = {}

    def expect(self, jobs: Sequence[Job], done: Sequence[Record], places: Sequence[Place]) -> None:
        self._rows = {job.id: _Row(job) for job in jobs}
        for record in done:
            self.ended(record)
        self.tick()

    def started(self, job: Job, place: Place) -> None:
        row = self._rows[job.id]
        row.word, row.style, row.where, row.rank = "running", "bold", place.name, 0
        row.since, row.tries = self._clock(), row.tries + 1
        self.tick()

    def failed(self, job: Job, attempt: Attempt, again: bool) -> None:
        row = self._rows[job.id]
        row.word = f"{attempt.ending}: {clean(attempt.reason, 100)}"
        row.style, row.since, row.rank = "yellow", None, 1
        self.tick()

    def ended(self, record: Record) -> None:
        row = self._rows[record.id]
        tone = TONES[record.verdict]
        row.word = f"{SYMBOLS[tone]} {_word(record)}"
        row.style, row.since = STYLES[tone], None
        row.rank = 3 if record.verdict == "pass" else 1
        row.where = record.place.name if record.place else row.where
        self.tick()

    def tick(self) -> None:
        self._live.update(self.drawn(), refresh=False)

    def drawn(self) -> Group:
        """The table as it is now: of many rows, those that say most."""
        rows = sorted(self._rows.values(), key=lambda row: row.rank)
        shown = [
            (
                clean(row.job.label, 60),
                "" if row.where == row.job.label else clean(row.where, 60),
                Text(row.word, row.style),
                seconds(self._clock() - row.since) if row.since is not None else "",
                str(row.tries or ""),
            )
            for row in rows[:MOST_ROWS]
        ]
        settled = sum(row.since is None and row.word != "waiting" for row in rows)
        more = f"; {len(rows) - MOST_ROWS} more rows" if len(rows) > MOST_ROWS else ""
        drawn = table(("job", "where", "now", "time", "tries"), shown, "ll ll")
        return Group(drawn, Text(f"{settled} of {len(rows)} jobs have ended{more}"))
