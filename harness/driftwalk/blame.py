"""Blame: which layer made the error, and which was only handed it.

    c_n - x_n  =  ( c_n - X_n(c_{n-1}) )  +  ( X_n(c_{n-1}) - x_n )
      error           introduced                 inherited

X_n is the truth's block n. One truth run in which every block gets the candidate's previous state
gives all of it, and needs nothing of the candidate but its states.
"""

from __future__ import annotations

from .calibrate import Calibration
from .norms import ZERO, Norms, distance, ratio
from .replay import replay_trace
from .result import Blame
from .states import State, Trace


def blame(truth: object, calibration: Calibration, candidate: Trace) -> dict[str, Blame]:
    """Split the candidate's error at every point into introduced and inherited."""
    introduced: dict[str, Norms] = {}
    inherited: dict[str, Norms] = {}
    total: dict[str, Norms] = {}

    def meet(state: State) -> None:
        name = state.point.name
        own, true = candidate.state(name), calibration.truth.state(name)
        if own is None or true is None or own.array.shape != true.array.shape:
            return
        keep = candidate.probe.keep(name, own.array.shape)
        introduced[name] = distance(own.array, state.array, keep)
        inherited[name] = distance(state.array, true.array, keep)
        total[name] = distance(own.array, true.array, keep)

    replay_trace(truth, candidate, meet)
    leeway = calibration.leeway(introduced)
    before = dict(zip(total, [ZERO, *total.values()], strict=False))
    return {
        name: _split(calibration, name, introduced[name], inherited[name], before[name], leeway)
        for name in introduced
    }


def _split(
    calibration: Calibration,
    name: str,
    introduced: Norms,
    inherited: Norms,
    before: Norms,
    leeway: Norms,
) -> Blame:
    yardstick = calibration.introduced.get(name, ZERO)
    allowed = calibration.allowed_own(name, leeway)
    return Blame(
        introduced=introduced.l2,
        inherited=inherited.l2,
        gain=ratio(inherited.l2, before.l2),
        ratio=introduced.over(yardstick)[0],
        guilty=introduced.over(allowed)[0] > 1,
        norms={
            "introduced": introduced,
            "inherited": inherited,
            "yardstick": yardstick,
            "allowed": allowed,
        },
    )


def root_cause(found: dict[str, Blame]) -> str | None:
    """The first layer whose own error exceeds what honest arithmetic makes there."""
    return next((name for name, item in found.items() if item.guilty), None)
