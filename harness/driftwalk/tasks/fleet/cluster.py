"""What the engine asks of machines, whoever owns them; Ray is one answer, this machine another.

A cluster must

- list its places: devices that can each work on one job at a time,
- start a job on a place and say which place that was when the job ends,
- tell how each job ended: with text on stdout and an exit code, or because the place was lost,
- give up a job when told to, with every process that the job started.

It judges nothing and retries nothing: that is the engine's. Beside it, who looks on while it works.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .job import Job, Place
from .result import Attempt, Record

Ending = Literal["ended", "timeout", "lost"]


@dataclass(frozen=True)
class Event:
    """A job has left its place."""

    place: Place
    job: Job
    ending: Ending
    code: int = 0
    """The exit code, where the job ended by itself; negative: killed by that signal."""
    out: str = ""
    """What it printed: the result, as JSON."""
    err: str = ""
    """The end of what it said on stderr; of a lost place, why it is taken for lost."""


class Cluster(Protocol):
    """Where jobs run."""

    @property
    def about(self) -> str:
        """For people: `this machine`, `Ray at 10.0.0.1:6379`."""

    def places(self) -> Sequence[Place]:
        """What is there now."""

    def start(self, place: Place, job: Job, timeout: float) -> None:
        """Have an idle place work on a job, for at most so many seconds."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Jobs that have ended since; none after so long."""

    def abandon(self, place: Place) -> None:
        """End what runs there; nothing more is told about it."""

    def close(self) -> None:
        """End everything."""


class Watcher:
    """Hears what happens: a table on a terminal, lines in a log, or nobody, as here."""

    def expect(self, jobs: Sequence[Job], done: Sequence[Record], places: Sequence[Place]) -> None:
        """All jobs, those that an earlier run has done, and where the others may run."""

    def started(self, job: Job, place: Place) -> None: ...

    def failed(self, job: Job, attempt: Attempt, again: bool) -> None:
        """An attempt without an answer, and whether there will be another."""

    def ended(self, record: Record) -> None:
        """A job is settled."""

    def tick(self) -> None:
        """Time has passed."""
