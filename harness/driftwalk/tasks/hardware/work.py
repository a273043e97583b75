"""What every check is given: the device, the model, how much to do, and where to write it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import UsageError, nearest
from ...states import Probe
from .repeats import Findings, Tally
from .result import Reading, Round

if TYPE_CHECKING:
    from driftwalk_backends.hardware.station import Station

MODEL_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")
"""What a whole model is run in; fp8 is for single products."""
MOST = 1000
"""Rounds kept, and readings: beyond, every second one that says nothing special is dropped."""


@dataclass(frozen=True)
class Level:
    """How often each thing is repeated, and how long the device is kept busy."""

    name: str
    repeats: int
    """Runs of the model in each dtype."""
    slow_repeats: int
    """The same in half precision on a CPU, where each run can take hundreds of times as long."""
    unit_repeats: int
    core_repeats: int
    load_seconds: float


LEVELS: dict[str, Level] = {
    "quick": Level("quick", 20, 4, 3, 3, 6.0),
    "standard": Level("standard", 200, 20, 10, 10, 90.0),
    "soak": Level("soak", 50, 10, 5, 5, 600.0),
}


def level_named(name: str, minutes: float | None = None) -> Level:
    """A level; `minutes` say how long a soak takes, and are for a soak alone."""
    if name not in LEVELS:
        raise UsageError(f"There is no level {name!r}. {nearest(name, LEVELS)}")
    if minutes is None:
        return LEVELS[name]
    if name != "soak":
        raise UsageError(f"--minutes is for --level soak; {name} takes as long as it takes.")
    if not 0 < minutes < 1e6:
        raise UsageError(f"--minutes {minutes}: expected a number of minutes above 0.")
    return replace(LEVELS[name], load_seconds=60.0 * minutes)


@dataclass
class Log:
    """The timeline of one device, thinned so that a soak of days stays small."""

    start: float = field(default_factory=time.perf_counter)
    rounds: list[Round] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.perf_counter() - self.start

    def note(self, done: Round) -> None:
        self.rounds.append(done)
        if len(self.rounds) <= MOST:
            return
        if sum(not item.ok for item in self.rounds) > MOST // 2:  # nearly always wrong
            del self.rounds[1::2]
        else:
            dropped = {id(item) for item in [item for item in self.rounds if item.ok][1::2]}
            self.rounds = [item for item in self.rounds if id(item) not in dropped]

    def read(self, station: Station, when: str) -> Reading:
        reading = Reading(self.now, when, *station.sense())
        self.readings.append(reading)
        if len(self.readings) > MOST:
            del self.readings[1::2]
        return reading


@dataclass(frozen=True, eq=False)
class Work:
    """One device and what is to be done on it."""

    station: Station
    level: Level
    log: Log
    model: Any
    probe: Probe
    dtypes: tuple[str, ...]
    given: bool = False
    """Whether the user named the model: it may be large, and is not kept in several dtypes."""
    _kept: dict[str, Any] = field(default_factory=dict)

    def backend(self, dtype: str) -> Any:
        """The model in a dtype on this device, closed with the work."""
        if dtype not in self._kept:
            if self.given:
                self.close()
            self._kept[dtype] = self.station.repeater(self.model, dtype)
        return self._kept[dtype]

    def close(self) -> None:
        for backend in self._kept.values():
            backend.close()
        self._kept.clear()
        self.station.free()

    @property
    def model_dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype in self.dtypes if dtype in MODEL_DTYPES)

    def model_run(self, backend: Any, case: str) -> Callable[[int], Mapping[str, Any]]:
        """Runs the model once; it is called with the number of the repeat."""
        return partial(self.station.model_states, backend, self.probe, case)

    def tally(self, check: str, case: str, by_design: tuple[str, ...] = ()) -> Tally:
        return Tally(check, case, self.station.differences, self.station.core, by_design)

    def once(self, tally: Tally, run: Callable[[int], Mapping[str, Any]]) -> Mapping[str, Any]:
        """One repeat: run, digest, judge, and write it down."""
        begun, repeat, at = time.perf_counter(), tally.repeats, self.log.now
        states = run(repeat)
        core = self.station.core
        ok = tally.add(self.station.digests(states), states, at, core)
        seconds = time.perf_counter() - begun
        tally.seconds += seconds
        self.log.note(Round(tally.check, tally.case, repeat, at, seconds, ok, core))
        return states

    def repeat(
        self, findings: Findings, tally: Tally, count: int, run: Callable[[int], Mapping[str, Any]]
    ) -> Tally:
        """So many repeats; however it ends, what was found is kept."""
        try:
            for _ in range(count):
                self.once(tally, run)
        finally:
            findings.take(tally)
        return tally
