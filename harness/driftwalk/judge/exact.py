"""Whole numbers and booleans: equal, or drift. No truth and no yardstick is asked.

Only outputs of a model can be such states. An output that is the argmax of noisy numbers may flip
where an honest implementation has a tie; it is drift all the same, unless a rule for that point
(`output.ids=1`) gives it room.

And outputs that are infinite on purpose, the scores of what a model has masked out: where both
sides have the same infinity, nothing differs. NaN is never the same as anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ..dtypes import FORMATS, Array
from ..layer_drift import Allowed, Dtypes, LayerDrift
from ..measure.metrics import measure
from ..states import OUTPUT, Point, Probe, State, Trace
from ..tolerance import Policy, Tolerance

EXACT = Tolerance(0.0)
NOTE = "whole numbers are compared exactly"
RULED = "whole numbers, compared by a rule for this point"


def is_exact(state: State) -> bool:
    """Whether a state holds no floating-point numbers."""
    return state.dtype not in FORMATS


def measurable(state: State) -> bool:
    """Whether a state has an error that can be told in norms: floats, at least one of them."""
    return not is_exact(state) and state.elements() > 0


def float_states(trace: Trace, like: Trace | None = None) -> Trace:
    """The states that have an error in norms: floats, and of outputs those that are finite.

    Of these, those that have the shape they have in `like`: how many boxes a detector gives may
    depend on its numbers.
    """

    def fits(state: State) -> bool:
        other = like.state(state.point.name) if like is not None else state
        if not measurable(state) or (other is not None and other.shape != state.shape):
            return False
        return not may_be_infinite(state) or bool(np.isfinite(state.array).all())

    return replace(trace, states=tuple(state for state in trace if fits(state)))


def exact_row(
    point: Point, reference: State, candidate: State, probe: Probe, policy: Policy
) -> LayerDrift:
    """One point of equal shape, of which a side or both hold whole numbers.

    Only a rule that was made for this point by its name gives it room.
    """
    named = (
        rule.tolerance for rule in policy.rules if rule.glob != "*" and rule.matches(point.name)
    )
    room = next(named, None) or EXACT
    r, c, keep = _with_tokens(reference.array, candidate.array, probe, point.name)
    measured = measure(r, c, room, keep)
    metrics, needed = measured.metrics, measured.exceeded
    if room == EXACT:  # numbers that a float64 cannot tell apart count as well
        differ = int(np.count_nonzero(r != c if keep is None else (r != c)[keep]))
        most = max(metrics.max_abs, float(differ > 0))
        metrics = replace(metrics, mismatched=differ, max_abs=most)
        needed = math.inf if differ else 0.0
    if metrics.worst is not None:
        index = metrics.worst.index[: len(reference.shape)]
        metrics = replace(metrics, worst=replace(metrics.worst, index=index))
    nonfinite = bool(metrics.nonfinite.candidate)
    return LayerDrift(
        point,
        0,
        reference.shape,
        Dtypes(reference.dtype, candidate.dtype),
        "nonfinite" if nonfinite else "drift" if metrics.mismatched else "ok",
        metrics,
        Allowed(room.atol, room.rtol, measured.scale, needed),
        note=NOTE if room == EXACT else RULED,
    )


def _with_tokens(r: Array, c: Array, probe: Probe, point: str) -> tuple[Array, Array, Array | None]:
    """Both sides, and which tokens are no padding; one number for each token is a row of one."""
    keep = probe.keep(point, r.shape)
    if r.ndim == 2:
        keep = probe.keep(point, (*r.shape, 1))
        if keep is not None:
            r, c = r[..., None], c[..., None]
    return r, c, keep


def exact_cause(layers: Iterable[LayerDrift]) -> str | None:
    """The first output of whole numbers that differs, where nothing else does: its own doing."""
    bad = [row for row in layers if not row.ok]
    alone = all(row.verdict == "drift" and row.note == NOTE for row in bad)
    return bad[0].point.name if bad and alone else None


def may_be_infinite(state: State) -> bool:
    """Whether a state is an output beside the main one; states inside a model are finite."""
    return state.point.name.startswith(OUTPUT)


def without_shared(reference: State, candidate: State) -> tuple[State, State, str]:
    """Both states with 0 where both have the same infinity, and a note that says how often."""
    r, c = reference.array, candidate.array
    with np.errstate(invalid="ignore"):
        same = np.isinf(r) & (r == c)
    count = int(np.count_nonzero(same))
    if not count:
        return reference, candidate, ""
    sides = ((reference.point, r), (candidate.point, c))
    ours, theirs = (State(p, np.where(same, np.zeros((), a.dtype), a)) for p, a in sides)
    return ours, theirs, f"{count} elements are infinite on both sides alike"
