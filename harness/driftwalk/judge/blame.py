"""Blame: which layer made the error, and which was only handed it.

    c_n - x_n  =  ( c_n - X_n(c_{n-1}) )  +  ( X_n(c_{n-1}) - x_n )
      error           introduced                 inherited

X_n is the truth's block n. One truth run in which every block gets the candidate's previous state
gives all of it, and needs nothing of the candidate but its states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..layer_drift import Blame, LayerDrift
from ..measure.metrics import token_errors
from ..measure.norms import ZERO, Norms, distance, ratio
from ..measure.tokens import TokenErrors
from ..states import State, Trace
from .calibrate import Calibration
from .exact import exact_cause
from .replay import replay_trace


def blame(truth: object, calibration: Calibration, candidate: Trace) -> dict[str, Blame]:
    """Split the candidate's error at every point into introduced and inherited."""
    introduced: dict[str, Norms] = {}
    inherited: dict[str, Norms] = {}
    total: dict[str, Norms] = {}
    tokens: dict[str, TokenErrors | None] = {}

    def meet(state: State) -> None:
        name = state.point.name
        own, true = candidate.state(name), calibration.truth.state(name)
        if own is None or true is None or own.array.shape != true.array.shape:
            return
        keep = candidate.probe.keep(name, own.array.shape)
        introduced[name] = distance(own.array, state.array, keep)
        inherited[name] = distance(state.array, true.array, keep)
        total[name] = distance(own.array, true.array, keep)
        tokens[name] = token_errors(own.array, state.array, keep)

    # A state of another shape cannot be handed to the truth's next block.
    fitting = tuple(s for s in candidate if _fits(s, calibration.truth.state(s.point.name)))
    replay_trace(truth, replace(candidate, states=fitting), meet)
    leeway = calibration.leeway(introduced)
    before = dict(zip(total, [ZERO, *total.values()], strict=False))
    split = {
        name: _split(calibration, name, introduced[name], inherited[name], before[name], leeway)
        for name in introduced
    }
    return {name: replace(one, tokens=tokens[name]) for name, one in split.items()}


def _fits(state: State, true: State | None) -> bool:
    return true is None or true.array.shape == state.array.shape


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


def root_cause(found: Mapping[str, Blame], layers: Iterable[LayerDrift] = ()) -> str | None:
    """The first layer whose own error exceeds what honest arithmetic makes there.

    A candidate that computes as the reference does is held to less than that: then the first layer
    that drifted by what it made of its own input.
    """
    guilty = (name for name, item in found.items() if item.guilty)
    rows = tuple(layers)
    drifted = (row for row in rows if row.verdict == "drift")
    own = (row.point.name for row in drifted if row.tolerance and row.tolerance.by_own_doing)
    return next(guilty, None) or next(own, None) or exact_cause(rows)
