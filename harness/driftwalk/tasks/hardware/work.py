"""What every check is given: the device, the model, how much to do, and where to write it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...states import Probe
from .levels import Level
from .log import Log
from .repeats import Findings, Tally
from .result import Round

if TYPE_CHECKING:
    from driftwalk_backends.hardware.station import Station

MODEL_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16")
"""What a whole model is run in; fp8 is for single products."""


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
    def load_dtypes(self) -> tuple[str, ...]:
        """What is kept ready for the whole run; of a model that was named, one dtype."""
        if not self.given:
            return self.model_dtypes
        usual = "fp32" if self.station.label == "cpu" else "fp16"
        return (usual,) if usual in self.model_dtypes else self.model_dtypes[:1]

    @property
    def model_dtypes(self) -> tuple[str, ...]:
        return tuple(dtype for dtype in self.dtypes if dtype in MODEL_DTYPES)

    def repeats(self, dtype: str) -> int:
        slow = self.station.label == "cpu" and dtype in ("bf16", "fp16")
        return self.level.slow_repeats if slow else self.level.repeats

    def tally(self, check: str, case: str, by_design: tuple[str, ...] = ()) -> Tally:
        core = self.station.core
        return Tally(check, case, self.station.differences, core, by_design)

    def once(self, tally: Tally, run: Callable[[int], Mapping[str, Any]]) -> Mapping[str, Any]:
        """One repeat: run, digest, judge, and write it down."""
        begun, repeat = time.perf_counter(), tally.repeats
        at = self.log.now
        states = run(repeat)
        digests = self.station.digests(states)
        ok = tally.add(digests, states, at, self.station.core)
        seconds = time.perf_counter() - begun
        core = self.station.core
        self.log.note(Round(tally.check, tally.case, repeat, at, seconds, ok, core))
        return states

    def repeat(
        self, findings: Findings, tally: Tally, count: int, run: Callable[[int], Mapping[str, Any]]
    ) -> Tally:
        """So many repeats; however it ends, what was found is kept."""
        begun = time.perf_counter()
        try:
            for _ in range(count):
                self.once(tally, run)
        finally:
            findings.take(tally, seconds=time.perf_counter() - begun)
        return tally
