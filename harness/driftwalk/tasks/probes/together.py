"""Probes that are run together: one side on all of them, then the next side.

Threads of one runtime keep a core each busy for a while after a run, in case another follows, and
each side's weights push those of the other out of the CPU's caches: by turns, both sides take
longer. What each probe is judged by is as if it had been run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np

from ...adapter import Backend, Exercises, Prepares, RunsInARow
from ...errors import BackendError, DriftwalkError
from ...exercised import LooksUp
from ...stage import Setting, open_sides
from ...states import Probe, Trace, same_bits

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
    try:
        with open_sides(Setting(model), sides) as opened:
            reference, *_ = opened.backends
            for side in opened.backends:
                # Rows of tables that are looked up are added up once.
                counts = side is reference or not isinstance(reference, Exercises)
                runs = _in_a_row(side, runs, model if counts else None)
    except DriftwalkError as error:  # of no probe in particular: each is told why by its own run
        return [Runs(probe, failed=str(error)) for probe in probes]
    return runs


def _in_a_row(side: Backend, before: Sequence[Runs], model: Any) -> list[Runs]:
    """One more side; a model, if there is one, adds up what its runs use."""
    runs: list[Runs] = []
    ran: list[Probe] = []
    with ExitStack() as row:
        if isinstance(side, Exercises) and isinstance(model, LooksUp):
            row.enter_context(model.looking_up(ran))
        if isinstance(side, RunsInARow):  # last: from here on nothing else may be hooked
            row.enter_context(side.in_a_row())
        for one in before:
            runs.append(_run(side, one))
            ran += () if runs[-1].failed else (one.probe,)
    if _share_memory([one.traces[-1] for one in runs if not one.failed]):
        raise BackendError(f"{side.spec} hands on the same memory in run after run.")
    return runs


def _share_memory(traces: Sequence[Trace]) -> bool:
    """Whether a run wrote its numbers where those of another were: a state must be a copy."""
    placed = sorted(
        (
            (array.__array_interface__["data"][0], run, array)
            for run, trace in enumerate(traces)
            for array in (*(state.array for state in trace), *trace.outputs.values())
            if array.size
        ),
        key=itemgetter(0, 1),
    )
    return any(a[1] != b[1] and np.may_share_memory(a[2], b[2]) for a, b in pairwise(placed))


def _run(side: Backend, before: Runs) -> Runs:
    if before.failed:
        return before
    try:
        if isinstance(side, Prepares):
            side.prepare(before.probe)
        return Runs(before.probe, (*before.traces, side.trace(before.probe)))
    except DriftwalkError as error:
        return Runs(before.probe, failed=str(error))


def repeats(model: Any, sides: Sequence[Backend], runs: Runs) -> list[bool]:
    """Whether each side, run once more on the same probe, gives the bits that these runs have."""
    with open_sides(Setting(model), sides) as opened:
        pairs = zip(opened.backends, runs.traces, strict=True)
        return [_alike(side.trace(runs.probe), seen) for side, seen in pairs]


def _alike(now: Trace, before: Trace) -> bool:
    one, other = ({state.point.name: state.array for state in trace} for trace in (now, before))
    return same_bits(one, other)


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
