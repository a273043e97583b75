"""A backend that is slower than another by a known factor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from driftwalk.adapter import Backend, BackendInfo, Lap, Offer
from driftwalk.spec import Spec
from driftwalk.states import Probe


class Slowed(Backend):
    """Takes `factor` times as long as the backend it wraps, and says so in its name."""

    name = "slowed"

    def __init__(self, inner: Backend, factor: float) -> None:
        super().__init__(Spec("slowed"))
        self._inner = inner
        self._factor = factor

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return []

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(f"slowed-{self._factor:g}", "slowed", "cpu", "fp32")

    def _forward(self, probe: Probe, sink: Any) -> Any:
        return self._inner._forward(probe, sink)

    def lap(self, probe: Probe) -> Lap:
        """The wait is spun, not slept: a sleep is longer than asked for."""
        start = time.perf_counter()
        self._inner.run(probe)
        end = start + (time.perf_counter() - start) * self._factor
        while time.perf_counter() < end:
            pass
        return Lap(time.perf_counter() - start)
