"""This machine as a cluster: one process per device, each in a group of its own."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

from .cluster import Event
from .job import Job, Place
from .process import PROGRAM, Process

NAP = 0.05


class LocalCluster:
    """Processes on this machine; the golden is used where it lies."""

    def __init__(
        self,
        devices: Sequence[str],
        golden: Path | None = None,
        slots: int = 1,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        node = platform.node() or "localhost"
        self._places = tuple(
            Place(node, device, slot)
            for device in devices
            for slot in range(slots if device == "cpu" else 1)
        )
        self._golden = str(golden.resolve()) if golden is not None else ""
        self._program = tuple(program)
        self._running: dict[Place, tuple[Job, Process]] = {}

    @property
    def about(self) -> str:
        return "this machine, in processes"

    def places(self) -> Sequence[Place]:
        return self._places

    def start(self, place: Place, job: Job, timeout: float) -> None:
        words = job.command(place, self._golden)
        self._running[place] = (job, Process(words, timeout, job.folder, self._program))

    def wait(self, seconds: float) -> Sequence[Event]:
        until = time.monotonic() + seconds
        while True:
            found = [place for place in self._running if self._running[place][1].poll() is not None]
            if found or time.monotonic() >= until:
                return [self._ended(place) for place in found]
            time.sleep(NAP)

    def _ended(self, place: Place) -> Event:
        job, process = self._running.pop(place)
        code = process.poll()
        try:
            return Event(
                place,
                job,
                "timeout" if process.timed_out else "ended",
                code if code is not None else -1,
                process.printed(),
                process.said(),
            )
        finally:
            process.close()

    def abandon(self, place: Place) -> None:
        if place in self._running:
            _, process = self._running.pop(place)
            process.kill()
            process.close()

    def close(self) -> None:
        for place in list(self._running):
            self.abandon(place)
