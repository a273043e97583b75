"""What happened when: repeats and sensor readings, thinned so that a soak of days stays small."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .result import Reading, Round

if TYPE_CHECKING:
    from driftwalk_backends.hardware.station import Station

MOST = 1000
"""Rounds kept, and readings: beyond, every second one that says nothing special is dropped."""


class Log:
    """The timeline of one device."""

    def __init__(self, start: float | None = None) -> None:
        self._start = time.perf_counter() if start is None else start
        self._rounds: list[Round] = []
        self._readings: list[Reading] = []
        self.repeats = 0
        """All of them, thinned out or not."""

    @property
    def now(self) -> float:
        return time.perf_counter() - self._start

    @property
    def rounds(self) -> tuple[Round, ...]:
        return tuple(self._rounds)

    @property
    def readings(self) -> tuple[Reading, ...]:
        return tuple(self._readings)

    def note(self, done: Round) -> None:
        self.repeats += 1
        self._rounds.append(done)
        if len(self._rounds) > MOST:
            bad = sum(not item.ok for item in self._rounds)
            if bad > MOST // 2:  # a device that is nearly always wrong
                del self._rounds[1::2]
            else:
                fine = [item for item in self._rounds if item.ok][1::2]
                dropped = set(map(id, fine))
                self._rounds = [item for item in self._rounds if id(item) not in dropped]

    def read(self, station: Station, when: str) -> Reading:
        values, throttled = station.sense()
        reading = Reading(self.now, when, values, throttled)
        self._readings.append(reading)
        if len(self._readings) > MOST:
            del self._readings[1::2]
        return reading
