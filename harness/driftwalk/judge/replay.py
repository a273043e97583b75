"""Replay: what the truth's blocks make of somebody else's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..adapter import Replays, Sink
from ..dtypes import Array
from ..measure.norms import Norms
from ..states import State, Trace
from ..workers import in_threads, workers
from .exact import measurable

Found = TypeVar("Found")


def room_for_waiting() -> int:
    """Bytes of states that may wait until several are looked at side by side."""
    return max(8, workers()) << 23


def replay_trace(truth: object, trace: Trace, sink: Sink) -> None:
    """Hand on what each of the truth's blocks makes of the trace's previous state."""
    if not isinstance(truth, Replays):
        raise TypeError(f"{truth!r} cannot replay")
    truth.replay(trace.probe, {state.point.name: state.array for state in trace}, sink)


def replay_pairs(truth: object, trace: Trace, meet: Callable[[State, State], None]) -> None:
    """The same; each beside the trace's own state, where that has the same shape."""

    def sink(made: State) -> None:
        own = trace.state(made.point.name)
        if own is not None and own.array.shape == made.array.shape:
            meet(own, made)

    replay_trace(truth, trace, sink)


def measured_pairs(
    blocks: object, trace: Trace, measure: Callable[[State, State], Found]
) -> dict[str, Found]:
    """What is measured of each pair by the name of its point; several are measured side by side."""
    found: dict[str, Found] = {}
    waiting: list[tuple[State, State]] = []

    def work_off() -> None:
        names = [made.point.name for _, made in waiting]
        sizes = in_threads(lambda pair: measure(*pair), waiting, lambda pair: pair[1].elements())
        found.update(zip(names, sizes, strict=True))
        waiting.clear()

    def meet(own: State, made: State) -> None:
        waiting.append((own, made))
        if sum(kept.array.nbytes for _, kept in waiting) > room_for_waiting():
            work_off()

    replay_pairs(blocks, trace, meet)
    work_off()
    return found


def introduced_errors(
    blocks: object, trace: Trace, measure: Callable[[str, Array, Array], Norms]
) -> dict[str, Norms]:
    """|c_n - X_n(c_{n-1})| at every point of a trace; `blocks` is the backend that has the X_n."""

    def error(own: State, made: State) -> Norms | None:
        return measure(made.point.name, own.array, made.array) if measurable(own) else None

    found = measured_pairs(blocks, trace, error)
    return {name: one for name, one in found.items() if one is not None}
