"""A side's choices held against the truth's: ties, changes, and the drift that a choice makes.

    c_n - x_n   =   ( c_n - R_n )   +   ( R_n - x_n )
      error          arithmetic           routing

R is the truth made to choose as the side did. With its scores a choice that is not the truth's is a
tie, or follows from a choice before it, or is a change. A side without a change whose arithmetic is
within its allowance has drifted by ties alone: that is no drift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np

from ..adapter import Backend, Chooses, Replays
from ..chosen import Choice, other_rows
from ..dtypes import Array
from ..layer_drift import Allowed, LayerDrift, Side
from ..measure.norms import Norms, distance, norms_of, ratio
from ..routing import Decided, Flips, RoutingPart
from ..states import State, Trace
from .calibrate import Calibration
from .exact import measurable
from .margins import HonestChoice, by_name, counted_rows, fits, ignore
from .sides import JudgedSide


@dataclass(frozen=True, eq=False)
class Routed:
    """What one side chose, and what that explains of its error."""

    side: Side
    calibration: Calibration
    states: Trace
    choices: Mapping[str, Choice]
    recorded: bool
    """Whether these are the choices as it made them, not those that its states imply."""
    flips: Mapping[str, Flips]
    parts: tuple[RoutingPart, ...] = ()
    arithmetic: Mapping[str, Allowed] = field(default_factory=dict)
    """Point by point, how much of its allowance the side uses beside a truth that chose alike."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """The same for what it chose by, choice by choice: a tie is one only if these are honest."""

    @property
    def forced(self) -> dict[str, Array]:
        return {name: choice.taken for name, choice in self.choices.items()}

    @property
    def flipped(self) -> bool:
        return any(one.others for one in self.flips.values())

    @property
    def changed(self) -> bool:
        return any(one.changes for one in self.flips.values())

    @property
    def by_ties_alone(self) -> bool:
        """Whether it chose otherwise than the truth by ties alone, and computes as it may."""
        if not self.flipped or self.changed or not self.arithmetic:
            return False
        states = all(used.needed <= 1 for used in self.arithmetic.values())
        return states and all(used <= 1 for used in self.scores.values())


def routed(side: Side, backend: Backend, truth: Backend, calibration: Calibration) -> Routed | None:
    """What a side chose; None where that cannot be told, or nothing is chosen."""
    if not calibration.choices or not isinstance(truth, Chooses):
        return None
    probe = calibration.truth.probe
    states, recorded = _states(backend, calibration)
    trace = replace(calibration.truth, states=states)
    made: Mapping[str, Choice] = recorded
    if not recorded:
        given = {state.point.name: state.array for state in states}
        made = by_name(truth.chosen(probe, ignore, given))
    known = {
        one.name: made[one.name] for one in calibration.choices if fits(one, made.get(one.name))
    }
    if not known:
        return None
    found = Routed(side, calibration, trace, known, bool(recorded), {})
    return _with_flips(found, truth)


def _states(
    backend: Backend, calibration: Calibration
) -> tuple[tuple[State, ...], dict[str, Choice]]:
    """A side's states, and what it chose, where it can say."""
    probe, states = calibration.truth.probe, list[State]()
    if isinstance(backend, Chooses) and (found := backend.chosen(probe, states.append)):
        return _fitting(states, calibration), by_name(found)
    trace = backend.trace(probe)
    return _fitting(trace, calibration), {}


def _fitting(states: Trace | list[State], calibration: Calibration) -> tuple[State, ...]:
    """States that the truth has as well: others cannot be handed to its blocks."""

    def fits_in(state: State) -> bool:
        true = calibration.truth.state(state.point.name)
        return true is not None and true.array.shape == state.array.shape and measurable(state)

    return tuple(state for state in states if fits_in(state))


def _with_flips(side: Routed, truth: Chooses) -> Routed:
    """Tell ties, consequences and changes apart, where anything was chosen otherwise."""
    calibration = side.calibration
    known = {one.name: one for one in calibration.choices if one.name in side.choices}
    counted = {name: counted_rows(one, calibration.truth) for name, one in known.items()}
    others = {
        name: other_rows(side.choices[name].taken, one.taken, one.ordered) & counted[name]
        for name, one in known.items()
    }
    if not any(rows.any() for rows in others.values()):
        return replace(side, flips=dict.fromkeys(known, Flips(0, 0, 0, 0)))
    states: list[State] = []
    try:
        made = by_name(truth.chosen(calibration.truth.probe, states.append, forced=side.forced))
    except Exception:  # another number of experts may not fit the model's code
        made, states = {}, []
    flips = {name: _told_apart(one, made.get(name), others[name]) for name, one in known.items()}
    alike = replace(calibration.truth, states=_fitting(states, calibration))
    scores = {
        name: one.scores_used(side.choices[name].scores, made[name].scores, counted[name])
        for name, one in known.items()
        if name in made
    }
    side = replace(side, flips=flips, scores=scores)
    return _with_parts(side, alike)


def _told_apart(choice: HonestChoice, made: Choice | None, others: Array) -> Flips:
    total = int(others.sum())
    if made is None or not total:
        return Flips(total, 0, 0, total)
    excess = choice.excess(made)
    changes, followed = int((excess > 1)[others].sum()), int((excess == 0)[others].sum())
    return Flips(total, total - changes - followed, followed, changes)


def _with_parts(side: Routed, alike: Trace) -> Routed:
    """Routing and arithmetic at every point, and how much of its allowance the latter uses."""
    calibration, true = side.calibration, side.calibration.truth
    honest = {**calibration.total, **calibration.steady}
    beside = replace(calibration, truth=alike, total=honest, tied={}, tipped={})
    judged = JudgedSide(side.side, beside)
    judged.meet_all(side.states)
    met = [name for name in true.names if name in judged.errors]
    used = {name: one for name in met if (one := judged.judged(name)) is not None}
    parts = []
    for name, one in used.items():
        keep = true.probe.keep(name, true[name].shape)
        size = norms_of(true[name], keep).l2
        routing = distance(alike[name], true[name], keep).l2
        own = side.states.state(name)
        assert own is not None
        arithmetic = distance(own.array, alike[name], keep).l2
        allowed = beside.allowed(name, judged.room).l2
        own_size = honest[name].size.l2
        sizes = ratio(routing, size), ratio(arithmetic, size), ratio(allowed, own_size)
        parts.append(RoutingPart(name, *sizes, one.needed))
    return replace(side, parts=tuple(parts), arithmetic=used)


def _within_by_own_doing(side: Routed, truth: Backend) -> set[str]:
    """The layers that introduce no more than they may, given the side's own input and choices."""
    if not isinstance(truth, Chooses) or not isinstance(truth, Replays):
        return set()
    calibration, found = side.calibration, dict[str, Norms]()

    def meet(made: State) -> None:
        own = side.states.state(made.point.name)
        if own is not None and own.array.shape == made.array.shape:
            name = made.point.name
            found[name] = calibration.own_error(name, own.array, made.array)

    given = {state.point.name: state.array for state in side.states}
    truth.chosen(calibration.truth.probe, meet, given, side.forced)
    room = calibration.room(found)
    most = {name: calibration.allowed_own(name, room) for name in found}
    return {name for name, error in found.items() if error.over(most[name])[0] <= 1}


def _total(side: Routed) -> dict[str, Allowed]:
    """What a side that chose as the truth does uses of its allowance, where choices are close.

    There a block that is run on the side's states may choose otherwise than the side did: not by
    that is the side judged, but by its own choices.
    """
    close = {one.point for one in side.calibration.choices if one.close.any()}
    judged = JudgedSide(side.side, side.calibration)
    judged.meet_all(side.states)
    met = close & judged.errors.keys()
    return {name: one for name in met if (one := judged.judged(name)) is not None}


def excused_rows(
    rows: tuple[LayerDrift, ...], sides: Mapping[Side, Routed], truths: Mapping[Side, Backend]
) -> tuple[tuple[LayerDrift, ...], tuple[str, ...]]:
    """The rows with drift taken back that ties alone explain, and the names of these."""
    by_itself = {
        name: any(name in row.sides_at_fault and row.sides[name].by_own_doing for row in rows)
        for name in sides
    }
    steady = {name: one for name, one in sides.items() if one.by_ties_alone}
    for name, one in sides.items():
        if by_itself[name] and one.recorded and not one.flipped:
            steady[name] = replace(one, arithmetic=_total(one))
    within = {
        name: _within_by_own_doing(one, truths[name])
        for name, one in steady.items()
        if by_itself[name]
    }
    excused: list[str] = []

    def taken_back(row: LayerDrift) -> LayerDrift:
        beyond = row.sides_at_fault
        if row.verdict != "drift" or not beyond or not beyond <= steady.keys():
            return row
        new = dict(row.sides)
        for side, routes in steady.items():
            point = row.point.name
            used = routes.arithmetic.get(point)
            if side not in beyond:
                continue
            if used is None or used.needed > 1:
                return row
            if row.sides[side].by_own_doing and point not in within[side]:
                return row
            new[side] = used
        excused.append(row.point.name)
        worst = max(new.values(), key=lambda used: used.needed)
        return replace(row, verdict="ok", sides=new, tolerance=worst)

    made = tuple(taken_back(row) for row in rows)
    return made, tuple(excused)


def decided(
    calibration: Calibration, candidate: Routed | None, reference: Routed | None
) -> tuple[Decided, ...]:
    """A row for each place at which something is chosen."""

    def flips(side: Routed | None, name: str) -> Flips | None:
        return side.flips.get(name) if side is not None else None

    def row(one: HonestChoice) -> Decided:
        counted = counted_rows(one, calibration.truth)
        margins = [m for m in one.margins[counted].tolist() if np.isfinite(m)]
        return Decided(
            point=one.point,
            module=one.module,
            op=one.op,
            best=one.best,
            of=one.of,
            decisions=int(counted.sum()),
            close=int(one.close[counted].sum()),
            margin=median(margins) if margins else None,
            candidate=flips(candidate, one.name),
            reference=flips(reference, one.name),
        )

    return tuple(map(row, calibration.choices))
