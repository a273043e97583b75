"""Who runs what: every job is done once, redone elsewhere when its place is lost, or accounted for.

The engine knows places and endings, and neither processes nor Ray. It starts a job only on a place
that is idle, writes an answer down before it looks at the next event, and keeps a list of attempts
for whatever went wrong.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...errors import DriftwalkError
from .cluster import Cluster, Event, Watcher
from .job import Job, Place
from .result import Attempt, Record, Status
from .store import Store

PATIENCE = 60.0
"""Seconds past a job's own limit after which a silent place is taken for lost."""
TICK = 0.25
ANSWERS = (0, 1, 3)
"""Exit codes of a command that has printed a result."""
USAGE = 2


@dataclass
class _Turn:
    """A job that is not settled."""

    job: Job
    attempts: list[Attempt] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    started: float = 0.0


@dataclass(eq=False)
class Engine:
    """Runs jobs on a cluster and settles every one of them."""

    cluster: Cluster
    store: Store
    timeout: float
    """Seconds for one job."""
    retries: int = 1
    watch: Watcher = field(default_factory=Watcher)
    clock: Callable[[], float] = time.monotonic
    complete: bool = field(default=True, init=False)
    """False where Ctrl-C ended the run."""
    _gone: set[Place] = field(default_factory=set, init=False)
    _running: dict[Place, _Turn] = field(default_factory=dict, init=False)
    _queue: deque[_Turn] = field(default_factory=deque, init=False)
    _records: dict[str, Record] = field(default_factory=dict, init=False)

    def run(self, jobs: Iterable[Job], resume: bool = False) -> list[Record]:
        """A record for every job, in the order given; on Ctrl-C, for what was done until then."""
        asked = list({job.id: job for job in jobs}.values())
        if resume:
            self._records = {job.id: old for job in asked if (old := self.store.load(job))}
        self._queue = deque(_Turn(job) for job in asked if job.id not in self._records)
        try:
            self.watch.expect(asked, list(self._records.values()), self.cluster.places())
            while self._queue or self._running:
                self._share_out()
                if not self._running:
                    break  # nobody left who could take what is queued
                for event in self.cluster.wait(TICK):
                    self._take(event)
                self._look_for_silence()
                self.watch.tick()
        except KeyboardInterrupt:
            self.complete = False
            for place in list(self._running):
                self.cluster.abandon(place)
                self._queue.append(self._running.pop(place))
        for turn in self._queue:
            self._give_up(turn, "interrupted" if not self.complete else self._nobody(turn.job))
        return [self._records[job.id] for job in asked]

    def _share_out(self) -> None:
        """Give every idle place the first job in the queue that it may take."""
        for place in self.cluster.places():
            if place in self._gone or place in self._running:
                continue
            fitting = (turn for turn in self._queue if turn.job.fits(place))
            turn = next((turn for turn in fitting if place in self._choice(turn)), None)
            if turn is None:
                continue
            self._queue.remove(turn)
            turn.places.append(place)
            turn.started = self.clock()
            self._running[place] = turn
            self.watch.started(turn.job, place)
            self.cluster.start(place, turn.job, self.timeout)

    def _choice(self, turn: _Turn) -> list[Place]:
        """Where it may run: a second try goes to another node, as long as there is one."""
        fitting = [p for p in self.cluster.places() if p not in self._gone and turn.job.fits(p)]
        tried = {place.node for place in turn.places}
        return [place for place in fitting if place.node not in tried] or fitting

    def _take(self, event: Event) -> None:
        turn = self._running.get(event.place)
        if turn is None or turn.job != event.job:
            return  # of an attempt that was given up before
        del self._running[event.place]
        if event.ending == "lost":
            self._gone.add(event.place)
            self._missed(turn, "lost", event.err or "the node was lost")
        elif event.ending == "timeout":
            self._missed(turn, "timeout", f"no result after {self.timeout:.0f} s")
        elif event.code not in ANSWERS:
            self._missed(turn, "failed", _last_words(event), event.code)
        else:
            self._answered(turn, event)

    def _answered(self, turn: _Turn, event: Event) -> None:
        done = Attempt(event.place.name, "done", "", self.clock() - turn.started)
        try:
            result = json.loads(event.out)
            tries = [*turn.attempts, done]
            record = self.store.save(turn.job, event.place, tries, result, event.code)
        except (DriftwalkError, ValueError, RecursionError) as error:
            # A command that cannot verify exits with 3 and prints no result: its words say why.
            said = _last_words(event) if not event.out else f"its result cannot be read: {error}"
            self._missed(turn, "failed", said, event.code)
        else:
            self._settle(record)

    def _missed(self, turn: _Turn, how: Status, why: str, code: int = 0) -> None:
        """An attempt without an answer: try again, or settle for that."""
        attempt = Attempt(turn.places[-1].name, how, why, self.clock() - turn.started)
        turn.attempts.append(attempt)
        again = code != USAGE and len(turn.attempts) <= self.retries and bool(self._choice(turn))
        self.watch.failed(turn.job, attempt, again)
        if again:
            self._queue.append(turn)
        else:
            self._give_up(turn, why)

    def _give_up(self, turn: _Turn, why: str) -> None:
        status: Status = turn.attempts[-1].ending if turn.attempts else "not run"
        place = turn.places[-1] if turn.places else None
        tries = tuple(turn.attempts)
        self._settle(Record(turn.job.id, turn.job, status, place, tries, note=why))

    def _settle(self, record: Record) -> None:
        self._records[record.id] = record
        self.watch.ended(record)

    def _look_for_silence(self) -> None:
        """A place that does not even keep its own time limit is not there any more."""
        for place, turn in list(self._running.items()):
            seconds = self.clock() - turn.started
            if seconds > self.timeout + PATIENCE:
                self.cluster.abandon(place)
                del self._running[place]
                self._gone.add(place)
                said = f"no word after {seconds:.0f} s: the node is lost, or its device is taken"
                self._missed(turn, "timeout", said)

    def _nobody(self, job: Job) -> str:
        if any(job.fits(place) for place in self.cluster.places()):
            return "no node is left that could do it"
        what = f"is called {job.at!r}" if job.at else f"has a {job.needs} device"
        return f"no node {what}"


def _last_words(event: Event) -> str:
    """Why a job has no result: the last line it said, or how it ended."""
    lines = [line.strip() for line in event.err.splitlines() if line.strip()]
    how = f"killed by signal {-event.code}" if event.code < 0 else f"exit code {event.code}"
    return f"{lines[-1].removeprefix('driftwalk: ')} ({how})" if lines else how
