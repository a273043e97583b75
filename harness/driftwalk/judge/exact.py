"""Whole numbers and booleans: equal, or drift, but where honest arithmetic itself changes them.

Only outputs of a model can be such states: ids, codes, ranks, counts. One that is chosen by noisy
numbers (an argmax, a rounding) may differ where these stand at a tie. Which entries do is seen by
the honest runs that a calibration makes anyway (the yardstick, the truth with roundoffs, the truth
with close choices tipped over): what one of them changes may be either, all else must be equal. A
rule for that point (`output.ids=1`) goes before that. The same holds for shapes: how many frames
there are may follow from a number that was rounded.

And outputs that are infinite on purpose, the scores of what a model has masked out: where both
sides have the same infinity, and the truth has it too where there is one, nothing differs. NaN is
never the same as anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from ..dtypes import FORMATS, Array, format_of
from ..layer_drift import Allowed, Dtypes, LayerDrift
from ..measure.metrics import measure
from ..names import LOGITS, OUTPUT
from ..states import Point, Probe, State, Trace
from ..tolerance import Policy, Tolerance
from .constants import MOST_CHANCE_ENTRIES

EXACT = Tolerance(0.0)
NOTE = "whole numbers are compared exactly"
RULED = "whole numbers, compared by a rule for this point"


@dataclass(frozen=True, eq=False)
class ByChance:
    """What honest arithmetic in some dtype changes that is no matter of degree."""

    entries: Mapping[str, Array] = field(default_factory=dict)
    """Outputs of whole numbers -> which of their entries."""
    shapes: tuple[str, ...] = ()
    """Points that have another shape in another honest run."""

    def joined(self, other: ByChance) -> ByChance:
        """What either of two sides may have by chance."""
        entries = dict(self.entries)
        for name, differ in other.entries.items():
            entries[name] = entries[name] | differ if name in entries else differ
        return ByChance(entries, tuple(dict.fromkeys((*self.shapes, *other.shapes))))

    @classmethod
    def of_all(cls, some: Iterable[ByChance]) -> ByChance:
        """What any of some sides may have by chance."""
        return reduce(cls.joined, some, cls())

    def why_open(self, layers: Iterable[LayerDrift], dtype: str) -> str:
        """Why a side that chose otherwise cannot be judged by these rows; empty where it can."""
        for row in layers:
            name, share = row.point.name, 0.0
            if row.verdict == "unknown" and name in self.shapes:
                return f"the shape of {name} is {row.note}"
            if row.ok and row.metrics and row.metrics.max_abs and name in self.entries:
                share = float(self.entries[name].mean())
            if share > MOST_CHANCE_ENTRIES:
                return (
                    f"{share:.0%} of the entries of {name} are chosen by chance in {dtype} "
                    "arithmetic, and this side chose otherwise than the reference. Try other "
                    "inputs, or a finer dtype"
                )
        return ""


def is_exact(state: State) -> bool:
    """Whether a state holds no floating-point numbers."""
    return state.dtype not in FORMATS


def measurable(state: State) -> bool:
    """Whether a state has an error that can be told in norms: floats, at least one of them."""
    return not is_exact(state) and state.elements() > 0


def float_states(trace: Trace, like: Trace | None = None) -> Trace:
    """The states that have an error in norms: floats, and of outputs those without NaN.

    Of these, those that have the shape they have in `like`: how many boxes a detector gives may
    depend on its numbers.
    """

    def fits(state: State) -> bool:
        other = like.state(state.point.name) if like is not None else state
        if not measurable(state) or (other is not None and other.shape != state.shape):
            return False
        return not may_be_infinite(state) or not np.isnan(state.array).any()

    return replace(trace, states=tuple(state for state in trace if fits(state)))


class HonestRuns:
    """Meets the states of honest runs, and keeps what they have otherwise than the truth."""

    def __init__(self, exact: Trace) -> None:
        self._exact = exact
        self._entries: dict[str, Array] = {}
        self._shapes: dict[str, None] = {}

    def meet(self, state: State) -> None:
        name, true = state.point.name, self._exact.state(state.point.name)
        if true is None:
            return
        if true.shape != state.shape:
            self._shapes[name] = None
        elif is_exact(true) and (differ := true.array != state.array).any():
            known = self._entries.get(name)
            self._entries[name] = differ if known is None else known | differ

    @property
    def by_chance(self) -> ByChance:
        return ByChance(self._entries, tuple(self._shapes))


def exact_row(
    point: Point,
    reference: State,
    candidate: State,
    probe: Probe,
    policy: Policy,
    by_chance: Array | None = None,
) -> LayerDrift:
    """One point of equal shape, of which a side or both hold whole numbers.

    Only a rule that was made for this point by its name gives it room, and to some entries that
    these are `by_chance`.
    """
    named = (
        rule.tolerance for rule in policy.rules if rule.glob != "*" and rule.matches(point.name)
    )
    room = next(named, None) or EXACT
    r, c, keep = _with_tokens(reference.array, candidate.array, probe, point.name)
    measured = measure(r, c, room, keep)
    metrics, needed, note = measured.metrics, measured.exceeded, RULED
    if room == EXACT:  # numbers that a float64 cannot tell apart count as well
        unlike = r != c
        free = np.zeros(r.shape, bool) if by_chance is None else by_chance.reshape(r.shape)
        all_of_them, differ = (_counted(some, keep) for some in (unlike, unlike & ~free))
        most = max(metrics.max_abs, float(all_of_them > 0))
        metrics = replace(metrics, mismatched=differ, max_abs=most)
        needed = math.inf if differ else 0.0
        note = NOTE
        if all_of_them and not differ:
            note = f"{NOTE}; {all_of_them} differ, all where honest arithmetic chooses by chance"
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
        note=note,
    )


def _counted(where: Array, keep: Array | None) -> int:
    return int(np.count_nonzero(where if keep is None else where[keep]))


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


def masked_out(true: State) -> Array | None:
    """Which elements of an output the truth itself has at infinity; None: none, or no output.

    The main output only where it is minus infinity, the score of what cannot be chosen, and not
    where nothing can be.
    """
    if may_be_infinite(true):
        found: Array = np.isinf(true.array)
    elif true.point.name == LOGITS:
        found = np.isneginf(true.array)
        if found.all():
            return None
    else:
        return None
    return found if found.any() else None


def without_shared(
    reference: State, candidate: State, true: State | None
) -> tuple[State, State, str]:
    """Both states with 0 where both have the same infinity, and a note that says how often.

    Where the truth is known, only what is infinite there, too: an overflow is none of these. Where
    then the reference alone has it, the lowest number stands for it: the candidate is what is off.
    """
    allowed = masked_out(true) if true is not None else None
    if allowed is None and (true is not None or not may_be_infinite(reference)):
        return reference, candidate, ""
    r, c = reference.array, candidate.array
    with np.errstate(invalid="ignore"):
        same = np.isinf(r) & (r == c)
    if allowed is not None and true is not None:
        same &= allowed
        r = np.where(allowed & ~same & (r == true.array), _lowest(r), r)
        reference = State(reference.point, r)
    count = int(np.count_nonzero(same))
    if not count:
        return reference, candidate, ""
    sides = ((reference.point, r), (candidate.point, c))
    ours, theirs = (State(p, np.where(same, np.zeros((), a.dtype), a)) for p, a in sides)
    return ours, theirs, f"{count} elements are infinite on both sides alike"


def without_infinity(scores: Array) -> Array:
    """Scores with the lowest number in place of minus infinity: neither is ever chosen."""
    return np.where(np.isneginf(scores), _lowest(scores), scores)


def _lowest(array: Array) -> Array:
    known = format_of(array)
    return np.array(known.lowest if known else 0, array.dtype)
