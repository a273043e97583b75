"""A graph that rounds between its products, held against the model with nothing rounded.

Such a graph is judged by what it declares itself, so that whatever it computes is right: another
activation, another bias, a norm's weight with a wrong step. In float it must be the model.

    |g_n - x_n|  >  allowed(n) + MOVED_NUMBERS |g_n - m_n|        at n it is another computation

x is the truth, g the graph in float64 with nothing rounded (however it cuts off: formats.Cut),
`allowed` what honest arithmetic of its dtype may be off; m is g with stored numbers that are no
rounding of the model's (folded ones, say) moved by up to half a step: what they were rounded from
cannot be told any better.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from ..errors import BackendError
from ..formats import Cut, HonestSides, Misstored
from ..measure.norms import ratio
from ..names import is_on_stream, is_output, stack_of
from ..states import Probe, State, Trace
from .calibrate import Calibration
from .constants import MOVED_NUMBERS
from .exact import is_exact

OTHERWISE = (
    "{} is another computation than the model's, with nothing rounded: off by {:.2g}, relatively"
)


def another_computation(
    sides: HonestSides, calibration: Calibration, probe: Probe
) -> tuple[str, Misstored] | None:
    """The first point at which it is, and by how much; None where it is the model."""
    plain = _run(sides, probe)
    if not _wrong(_beyond(plain, calibration), sides):
        return None
    moved = _run(sides, probe, moved=True)
    runs = []
    for cut in Cut:
        trace = plain if cut is Cut.AT_ZERO else _run(sides, probe, cut)
        runs.append(_wrong(_beyond(trace, calibration, (plain, moved)), sides))
        if not runs[-1]:
            return None
    # The one that is the model up to the latest point has the activations that the model has.
    order = {name: place for place, name in enumerate(plain.names)}
    (name, beyond), *_ = max((list(one.items()) for one in runs), key=lambda one: order[one[0][0]])
    state = plain.state(name)
    assert state is not None
    what = OTHERWISE.format(state.point.module or name, _relative(state, calibration))
    return name, Misstored(what, beyond)


def _wrong(used: Mapping[str, float], sides: HonestSides) -> dict[str, float]:
    """The points at which a graph is another model, and how many times it is off what it may be.

    Where normalisation may be folded away, a tensor need not be the state that it was taken for: it
    has in it what the model has behind it. What is mended at a later point, with the outputs and
    the last state of the stream right, was no other computation then.
    """
    if not sides.may_be_folded:
        return {name: times for name, times in used.items() if times > 1}
    stream = [name for name in used if is_on_stream(name) and stack_of(name) == ""]
    if not any(used[name] > 1 for name in (*filter(is_output, used), *stream[-1:])):
        return {}
    stacks: dict[str | None, list[str]] = {}
    for name in (name for name in used if not is_output(name)):
        stacks.setdefault(stack_of(name), []).append(name)
    left: set[str] = set()
    for names in stacks.values():
        left.update(takewhile(lambda name: used[name] > 1, reversed(names)))
    return {n: t for n, t in used.items() if n in left or (is_output(n) and t > 1)}


def _run(sides: HonestSides, probe: Probe, cut: Cut = Cut.AT_ZERO, moved: bool = False) -> Trace:
    try:
        with sides.in_float(cut, moved) as graph:
            return graph.trace(probe)
    except BackendError as error:
        raise BackendError(f"with nothing rounded it could not be run: {error}") from error


def _beyond(
    trace: Trace, calibration: Calibration, apart: Sequence[Trace] = ()
) -> dict[str, float]:
    """How far each point is off, in units of what is allowed; in order.

    `apart`: two runs whose distance is allowed, too, MOVED_NUMBERS times.
    """
    found = {}
    for state in trace:
        name, error = state.point.name, calibration.error(state)
        if error is None or is_exact(state):
            continue
        most = calibration.most_allowed(name)
        arrays = [one.array for run in apart if (one := run.state(name)) is not None]
        if len(arrays) == 2 and arrays[0].shape == arrays[1].shape:
            most = most.plus(calibration.between(name, *arrays).scaled(MOVED_NUMBERS))
        used = error.over(most)[0]
        found[name] = used if math.isfinite(used) else math.inf
    return found


def _relative(state: State, calibration: Calibration) -> float:
    error, honest = calibration.error(state), calibration.total.get(state.point.name)
    return math.inf if error is None or honest is None else ratio(error.l2, honest.size.l2)
