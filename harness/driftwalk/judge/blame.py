"""Blame: which layer made the error, and which was only handed it.

    c_n - x_n  =  ( c_n - X_n(c_{n-1}) )  +  ( X_n(c_{n-1}) - x_n )
      error           introduced                 inherited

X_n is the truth's block n. One truth run in which every block gets the candidate's previous state
gives all of it, and needs nothing of the candidate but its states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..layer_drift import Blame, LayerDrift, Side
from ..measure.metrics import token_errors
from ..measure.norms import ZERO, Norms, ratio
from ..measure.tokens import TokenErrors
from ..names import is_output
from ..states import State, Trace
from .calibrate import Calibration
from .depth import lacking_before, uneven_layer
from .exact import exact_cause
from .replay import replay_pairs


def blame(truth: object, calibration: Calibration, candidate: Trace) -> dict[str, Blame]:
    """Split the candidate's error at every point into introduced and inherited."""
    introduced: dict[str, Norms] = {}
    inherited: dict[str, Norms] = {}
    total: dict[str, Norms] = {}
    tokens: dict[str, TokenErrors | None] = {}

    def meet(own: State, made: State) -> None:
        name, true = own.point.name, calibration.truth.state(own.point.name)
        if true is not None and true.array.shape == own.array.shape:
            keep = candidate.probe.keep(name, own.array.shape)
            introduced[name] = calibration.own_error(name, own.array, made.array)
            inherited[name] = calibration.own_error(name, made.array, true.array)
            total[name] = calibration.own_error(name, own.array, true.array)
            tokens[name] = token_errors(own.array, made.array, keep)

    # A state of another shape cannot be handed to the truth's next block.
    fitting = tuple(s for s in candidate if _fits(s, calibration.truth.state(s.point.name)))
    replay_pairs(truth, replace(candidate, states=fitting), meet)
    room = calibration.room(introduced)
    before = dict(zip(total, [ZERO, *total.values()], strict=False))

    def split(name: str) -> Blame:
        norms = {
            "introduced": introduced[name],
            "inherited": inherited[name],
            "yardstick": calibration.own[name].noise if name in calibration.own else ZERO,
            "allowed": calibration.allowed_own(name, room),
        }
        return Blame(
            introduced=introduced[name].l2,
            inherited=inherited[name].l2,
            gain=ratio(inherited[name].l2, before[name].l2),
            ratio=introduced[name].over(norms["yardstick"])[0],
            guilty=introduced[name].over(norms["allowed"])[0] > 1,
            norms=norms,
            tokens=tokens[name],
        )

    return {name: split(name) for name in introduced}


def _fits(state: State, true: State | None) -> bool:
    return true is None or true.array.shape == state.array.shape


def root_cause(
    found: Mapping[str, Blame],
    layers: Iterable[LayerDrift] = (),
    side: Side = "candidate",
    tips: bool = False,
) -> str | None:
    """The first layer whose own error exceeds what honest arithmetic makes there.

    A candidate that computes as the reference does is held to less than that: then the first layer
    that drifted by what it made of its own input. Of two sides with different numbers of layers, it
    is at the latest the first layer that only one has; where honest arithmetic overflows as well,
    the first layer that is not finite; and where nothing else is, the first of another shape. What
    both sides gave bit by bit, from the first point on, is no cause of a difference.

    `tips`: roundings may tip over, and one token in which one did is all that blame sees of a layer
    that is within its allowance. Such a layer is named only where no other is guilty.
    """
    rows = tuple(layers)
    equal = _alike(rows)
    guilty = [name for name, item in found.items() if item.guilty and name not in equal]
    if tips:
        within = {row.point.name for row in rows if row.verdict == "ok"}
        guilty = [name for name in guilty if name not in within] or guilty
    if (uneven := uneven_layer(rows)) is not None:
        # What comes after a layer that is not there, or one too many, is only handed the gap.
        names = [row.point.name for row in rows]
        earlier = set(names[: names.index(uneven)])
        return next((name for name in guilty if name in earlier), uneven)
    used = ((row.point.name, row.sides.get(side)) for row in rows if row.verdict == "drift")
    own = (name for name, item in used if item and item.by_own_doing and item.needed > 1)
    broken = (row.point.name for row in rows if row.verdict == "nonfinite")
    cause = next(iter([*guilty, *own, *broken]), None) or exact_cause(rows)
    return cause or next((row.point.name for row in rows if row.verdict == "shape"), None)


def unseen_before(cause: str, truth: Trace, side: Trace) -> tuple[str, ...]:
    """The points right before the cause of which a side has no state that the truth can be handed.

    The truth's own went on in their place: what any of them does wrong is in what the cause made.
    """
    order = [name for name in truth.names if name == cause or not is_output(name)]
    if cause not in order or side.state(cause) is None:
        return ()
    seen = {s.point.name for s in side if _fits(s, truth.state(s.point.name))}
    return lacking_before(cause, order, seen)


def _alike(rows: Iterable[LayerDrift]) -> set[str]:
    """The points, from the first on, at which both sides gave the same bits and are within."""
    alike: set[str] = set()
    for row in rows:
        if row.verdict != "ok" or row.metrics is None or row.metrics.max_abs != 0:
            break
        alike.add(row.point.name)
    return alike
