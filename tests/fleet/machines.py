"""A cluster in memory, for the engine's own logic: it does what a script says, on its own clock.

It implements our protocol and checks that the engine keeps to it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from driftwalk.tasks.fleet.cluster import Event
from driftwalk.tasks.fleet.job import Job, Place
from driftwalk.tasks.fleet.result import Finding

Script = Callable[[Job, Place, int], str]
"""What an attempt comes to: `ok`, `fault`, `crash`, `usage`, `garbage`, `timeout`, `lost`,
`silent`; the number counts the attempts at that job from 0."""

STEP = 5.0


def job(name: str, at: Place | None = None, **more: Any) -> Job:
    kind = "hwcheck" if at else "verify"
    return Job(kind, (name,), name, at.name if at else None, **more)


def answer(name: str, ok: bool = True) -> dict[str, Any]:
    return {"job": name, "ok": ok}


def read(asked: Job, data: Any, code: int) -> Finding:
    """Results of these machines; an answer to another question is none."""
    from driftwalk.errors import UsageError

    if not isinstance(data, dict) or data.get("job") != asked.label:
        raise UsageError("Not an answer to this.")
    if data["ok"] != (code == 0):
        raise UsageError("The answer contradicts the exit code.")
    return Finding("pass" if data["ok"] else "fault", "said so", device="toy")


class Machines:
    """Places that do as they are told."""

    about = "machines in memory"

    def __init__(
        self, places: Sequence[Place], script: Script | None = None, interrupt_at: int | None = None
    ) -> None:
        self._places = tuple(places)
        self._script = script or (lambda job, place, number: "ok")
        self._interrupt_at = interrupt_at
        self._waits = 0
        self.now = 0.0
        self.running: dict[Place, tuple[Job, str, float]] = {}
        self.starts: list[tuple[str, Place]] = []
        self.tries: dict[str, int] = defaultdict(int)
        self.gone: set[Place] = set()
        self.closed = False

    def clock(self) -> float:
        return self.now

    def places(self) -> Sequence[Place]:
        return self._places

    def start(self, place: Place, job: Job, timeout: float) -> None:
        assert place in self._places
        assert place not in self.running, "a place works on one job at a time"
        assert place not in self.gone, "a lost place gets no work"
        assert job.id not in {busy.id for busy, _, _ in self.running.values()}, "not twice at once"
        assert job.fits(place)
        what = self._script(job, place, self.tries[job.id])
        self.tries[job.id] += 1
        self.starts.append((job.label, place))
        self.running[place] = (job, what, timeout)

    def wait(self, seconds: float) -> Sequence[Event]:
        self._waits += 1
        if self._waits == self._interrupt_at:
            raise KeyboardInterrupt
        self.now += STEP
        ended = [place for place, (_, what, _) in self.running.items() if what != "silent"]
        return [self._event(place) for place in ended]

    def _event(self, place: Place) -> Event:
        job, what, timeout = self.running.pop(place)
        match what:
            case "ok" | "fault":
                good = what == "ok"
                return Event(
                    place, job, "ended", 0 if good else 1, json.dumps(answer(job.label, good))
                )
            case "lost":
                self.gone.add(place)
                return Event(place, job, "lost", err="the wire was cut")
            case "timeout":
                self.now += timeout
                return Event(place, job, "timeout", -9)
            case "usage":
                return Event(place, job, "ended", 2, err="driftwalk: no such option")
            case "garbage":
                return Event(place, job, "ended", 0, '{"job": ')
            case "contradiction":
                return Event(place, job, "ended", 0, json.dumps(answer(job.label, False)))
            case _:
                return Event(place, job, "ended", -11, err="Segmentation fault")

    def abandon(self, place: Place) -> None:
        _, what, _ = self.running.pop(place)
        if what == "silent":
            self.gone.add(place)

    def close(self) -> None:
        self.closed = True
