"""Blame: which layer made the error, and which was only handed it.

    c_n - x_n  =  ( c_n - X_n(c_{n-1}) )  +  ( X_n(c_{n-1}) - x_n )
      error           introduced                 inherited

X_n is the truth's block n. One truth run in which every block gets the candidate's previous state
gives all of it, and needs nothing of the candidate but its states.
"""

from __future__ import annotations

from .calibrate import Calibration
from .norms import ZERO, distance, ratio
from .replay import replay_trace
from .result import Blame
from .states import State, Trace


def blame(truth: object, calibration: Calibration, candidate: Trace) -> dict[str, Blame]:
    """Split the candidate's error at every point into introduced and inherited."""
    found: dict[str, Blame] = {}
    before = ZERO
    own_noise = calibration.introduced

    def meet(state: State) -> None:
        nonlocal before
        name = state.point.name
        own, true = candidate.state(name), calibration.truth.state(name)
        if own is None or true is None or own.array.shape != true.array.shape:
            return
        keep = candidate.probe.keep(name, own.array.shape)
        introduced = distance(own.array, state.array, keep)
        inherited = distance(state.array, true.array, keep)
        allowed = calibration.allowed(name, own_noise)
        excess = introduced.over(allowed)[0]
        found[name] = Blame(
            introduced=introduced.l2,
            inherited=inherited.l2,
            gain=ratio(inherited.l2, before.l2),
            ratio=introduced.over(own_noise.get(name, ZERO))[0],
            guilty=excess > 1,
            norms={
                "introduced": introduced,
                "inherited": inherited,
                "yardstick": own_noise.get(name, ZERO),
                "allowed": allowed,
            },
        )
        before = distance(own.array, true.array, keep)

    replay_trace(truth, candidate, meet)
    return found


def root_cause(found: dict[str, Blame]) -> str | None:
    """The first layer whose own error exceeds what honest arithmetic makes there."""
    return next((name for name, item in found.items() if item.guilty), None)
