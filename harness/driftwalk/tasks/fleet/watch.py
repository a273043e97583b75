"""Who looks on while a fleet works: a table on a terminal, lines in a log, or nobody."""

from __future__ import annotations

from collections.abc import Sequence

from .job import Job, Place
from .result import Attempt, Record


class Watcher:
    """Is told what happens; says nothing by default."""

    def expect(self, jobs: Sequence[Job], done: Sequence[Record], places: Sequence[Place]) -> None:
        """All jobs, those that an earlier run has done, and where the others may run."""

    def started(self, job: Job, place: Place) -> None: ...

    def failed(self, job: Job, attempt: Attempt, again: bool) -> None:
        """An attempt without an answer, and whether there will be another."""

    def ended(self, record: Record) -> None:
        """A job is settled."""

    def tick(self) -> None:
        """Time has passed."""
