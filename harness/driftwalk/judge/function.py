"""Whether a side computes the model's function: its own program in float64, against the truth.

    c - x   =   ( f - x )  +  ( c - f )

x is the truth, c what the side computed, f its own program, run in float64 with its own numbers.
`f - x` has no arithmetic in it that could hide or excuse anything: where it is more than what
rounding stored numbers makes, the side is another function. The arithmetic of the side is `c - f`.

A state inside of another implementation may be anything, as long as what follows is right. So a
point at which f is not x is held against the side where nothing that follows agrees, or where the
truth goes on from f's state as if it were its own. Else both sides hold different things there,
and nothing is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..adapter import Backend, Replays
from ..dtypes import Array
from ..layer_drift import FUNCTION, Allowed
from ..measure.norms import ratio
from ..names import is_output, layer_of, place_of
from ..states import Probe, State, Trace
from .calibrate import Calibration
from .constants import YARDSTICKS
from .exact import float_states
from .replay import introduced_errors

_ANOTHER = (
    "The candidate is another function: run in float64, with no arithmetic of its own, it is off "
    "by {1:.2g} at {0} (relative L2), more than rounding its stored numbers explains"
)
_SAME = (
    "The candidate is the reference's function: run in float64 with its own stored numbers, it is "
    "at most {:.2g} off, at {} (relative L2)"
)
_UNPAIRED = (
    "{} points, {} the first, hold different things on the two sides, and what follows from them "
    "is the same: they were not compared"
)


@dataclass(frozen=True, eq=False)
class Function:
    """What became of the question for one candidate."""

    truth: Backend
    """The reference's program in float64 ..."""
    program: Backend
    """... and the candidate's own."""
    trace: Trace
    """What it gives: f, at the points that the truth has in the same shape."""
    calibration: Calibration
    """What rounding stored numbers makes, and x."""
    distances: Mapping[str, float]
    """How far f is from x at each point, relatively."""
    wrong: Mapping[str, Allowed] = field(default_factory=dict)
    """Points at which the candidate is another function."""
    unpaired: frozenset[str] = frozenset()
    """Points at which f and x are different things."""

    @property
    def worst(self) -> tuple[str, float]:
        """The point at which f is farthest from x, relatively, and how far."""
        paired = {n: off for n, off in self.distances.items() if n not in self.unpaired}
        name = max(paired, key=lambda one: paired[one], default="")
        return name, paired.get(name, 0.0)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report says of it."""
        if self.wrong:
            name = next(iter(self.wrong))
            found = _ANOTHER.format(name, self.distances[name])
        else:
            found = _SAME.format(*reversed(self.worst))
        names = [name for name in self.trace.names if name in self.unpaired]
        return (found, *((_UNPAIRED.format(len(names), names[0]),) if names else ()))

    @property
    def is_apart(self) -> bool:
        """Whether f is not x somewhere."""
        return bool(self.wrong or self.unpaired)

    def is_of(self, plain: Trace, calibration: Calibration) -> bool:
        """Whether a plain run of the program is as near to f as honest arithmetic is.

        Else f is not what the candidate computes, and says nothing of it.
        """
        own = self.standing_for(calibration)
        outputs = [state for state in plain if is_output(state.point.name)]
        errors = ((state.point.name, own.error(state)) for state in outputs)
        return all(e is None or e.over(own.most_allowed(n))[0] <= 1 for n, e in errors)

    def allowing(self, moved: Trace) -> Function:
        """The same where numbers that were made again may be off as far as half a unit moves f."""
        known = self.calibration
        moved = fitting(float_states(moved), self.trace)
        total = {
            s.point.name: known.between(s.point.name, s.array, self.trace[s.point.name])
            for s in moved
        }
        own = introduced_errors(self.program, moved, known.own_error)
        return _asked(self.truth, known.with_noise(total, own), self.program, self.trace)

    def standing_for(self, calibration: Calibration) -> Calibration:
        """A calibration by which the candidate's arithmetic is judged: its truth is f."""
        own = {state.point.name: state for state in self.trace}
        states = tuple(own.get(state.point.name, state) for state in calibration.truth)
        return replace(calibration, truth=replace(calibration.truth, states=states))


def function_of(
    truth: Backend, calibration: Calibration, program: Backend, probe: Probe
) -> Function:
    """Ask it: both are run in float64, whatever the candidate computes in."""
    trace = fitting(float_states(program.trace(probe)), calibration.truth)
    return _asked(truth, calibration.in_float64(), program, trace)


def _asked(truth: Backend, calibration: Calibration, program: Backend, trace: Trace) -> Function:
    used, distances = _used(trace, calibration)
    made = Function(truth, program, trace, calibration, distances)
    beyond = {name: one for name, one in used.items() if not one.needed <= 1}
    if not beyond:
        return made
    unpaired = frozenset(_unpaired(truth, calibration, trace, beyond))
    wrong = {name: one for name, one in beyond.items() if name not in unpaired}
    return replace(made, wrong=wrong, unpaired=unpaired)


def fitting(trace: Trace, true: Trace) -> Trace:
    """The states of a trace that another one has in the same shape."""

    def fits(state: State) -> bool:
        other = true.state(state.point.name)
        return other is not None and other.shape == state.shape

    return replace(trace, states=tuple(filter(fits, trace)))


def _used(trace: Trace, calibration: Calibration) -> tuple[dict[str, Allowed], dict[str, float]]:
    """How much of what stored numbers explain is used at each point; and the plain distances."""
    used: dict[str, Allowed] = {}
    distances: dict[str, float] = {}
    for state in trace:
        name, error = state.point.name, calibration.error(state)
        if error is None:
            continue
        distances[name] = ratio(error.l2, calibration.size(name).l2)
        most = calibration.most_allowed(name)
        if error.max_abs > 0 and math.isfinite(most.max_abs):
            needed, norm = error.over(most)
            one = Allowed(most.max_abs, 0.0, 1.0, needed, YARDSTICKS, f"{FUNCTION}{norm}")
            used[name] = one
    return used, distances


def _unpaired(
    truth: Backend, calibration: Calibration, trace: Trace, beyond: Mapping[str, Allowed]
) -> Iterable[str]:
    """The points of those where f is not x that hold something else than the truth does."""
    names = [name for name in trace.names if name in calibration.total]
    for place, name in enumerate(names):
        if name not in beyond or is_output(name):
            continue
        whole = layer_of(name) if not _is_state(name) else None
        if whole is not None and whole in names and whole not in beyond:
            yield name  # inside a layer that gives what it should
            continue
        agreeing = [other for other in names[place + 1 :] if other not in beyond]
        if agreeing and not _goes_on(truth, calibration, trace[name], name, agreeing):
            yield name


def _is_state(name: str) -> bool:
    place = place_of(name)
    return place is None or place.is_canonical


def _goes_on(
    truth: Backend, calibration: Calibration, state: Array, name: str, agreeing: Sequence[str]
) -> bool:
    """Whether the truth, given this state in place of its own, comes to its own later states."""
    beside: dict[str, bool] = {}

    def meet(made: State) -> None:
        point = made.point.name
        if point in agreeing:
            error = calibration.error(made)
            most = calibration.most_allowed(point)
            beside[point] = error is not None and error.over(most)[0] <= 1

    assert isinstance(truth, Replays)
    truth.replay(calibration.truth.probe, {name: state}, meet)
    return all(beside.values())
