"""Replay: what the truth's blocks make of somebody else's states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from .adapter import Sink
from .dtypes import Array
from .norms import Norms, distance
from .states import Probe, State, Trace


@runtime_checkable
class Replays(Protocol):
    """A backend that can run each block on a given previous state."""

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Hand on X_n(given_{n-1}) for each point n, in order of execution."""


def replay_trace(truth: object, trace: Trace, sink: Sink) -> None:
    """Hand on what each of the truth's blocks makes of the trace's previous state."""
    if not isinstance(truth, Replays):
        raise TypeError(f"{truth!r} cannot replay")
    truth.replay(trace.probe, {state.point.name: state.array for state in trace}, sink)


def introduced_errors(truth: object, trace: Trace) -> dict[str, Norms]:
    """|c_n - X_n(c_{n-1})| at every point of a trace."""
    found: dict[str, Norms] = {}

    def meet(state: State) -> None:
        own = trace.state(state.point.name)
        if own is not None and own.array.shape == state.array.shape:
            keep = trace.probe.keep(state.point.name, state.array.shape)
            found[state.point.name] = distance(own.array, state.array, keep)

    replay_trace(truth, trace, meet)
    return found
