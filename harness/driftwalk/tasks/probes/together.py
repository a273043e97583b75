"""Probes that are run together: one side on all of them, then the next side.

Threads of one runtime keep a core each busy for a while after a run, in case another follows, and
each side's weights push those of the other out of the CPU's caches: by turns, both sides take
longer. What each probe is judged by is as if it had been run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from ...adapter import Backend, Exercises, Prepares
from ...errors import DriftwalkError
from ...exercised import LooksUp
from ...stage import Setting, open_sides
from ...states import Probe, Trace

MOST = 16
"""So many probes are run together at most ..."""
MOST_NUMBERS = 4 << 20
"""... and so many whose states, of all sides, hold no more than these numbers."""


@dataclass(frozen=True, eq=False)
class Runs:
    """What all sides gave on one probe, the reference first; or why one of them gave nothing."""

    probe: Probe
    traces: tuple[Trace, ...] = ()
    failed: str = ""


def run_together(model: Any, sides: Sequence[Backend], probes: Sequence[Probe]) -> list[Runs]:
    """Every side on each of the probes."""
    runs = [Runs(probe) for probe in probes]
    with open_sides(Setting(model), sides) as opened:
        reference, *candidates = opened.backends
        runs = [_run(model, reference, one, adds_up=True) for one in runs]
        for side in candidates:
            adds_up = not isinstance(reference, Exercises)
            runs = [_run(model, side, one, adds_up) for one in runs]
    return runs


def _run(model: Any, side: Backend, before: Runs, adds_up: bool) -> Runs:
    """One more side; rows of tables that are looked up are added up in runs of one of them."""
    if before.failed:
        return before
    counts = adds_up and isinstance(side, Exercises) and isinstance(model, LooksUp)
    try:
        if isinstance(side, Prepares):
            side.prepare(before.probe)
        with model.looking_up(before.probe) if counts else nullcontext():
            return Runs(before.probe, (*before.traces, side.trace(before.probe)))
    except DriftwalkError as error:
        return Runs(before.probe, failed=str(error))


class Together:
    """How many of the probes that come next are run together."""

    def __init__(self) -> None:
        self._each = float(MOST_NUMBERS)
        """Numbers in the states for one number of the inputs, as far as is known."""

    def learn(self, runs: Sequence[Runs]) -> None:
        """What states take, by the probes that were run last."""
        known = [
            sum(state.elements() for trace in one.traces for state in trace) / _elements(one.probe)
            for one in runs
            if one.traces
        ]
        self._each = max(known, default=self._each)

    def enough(self, probes: Sequence[Probe]) -> bool:
        """Whether these should not wait for more."""
        numbers = self._each * sum(map(_elements, probes))
        return len(probes) >= MOST or numbers >= MOST_NUMBERS


def _elements(probe: Probe) -> int:
    return max(1, sum(array.size for array in probe.inputs.values()))
