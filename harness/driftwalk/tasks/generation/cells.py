"""Layer by step: how far each token of a sequence is off, in units of what one token may be off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...dtypes import Array, Float64
from ...judge.calibrate import Calibration
from ...judge.honest import Honest
from ...judge.replay import replay_pairs
from ...layer_drift import Allowed, LayerDrift
from ...measure.halves import widened
from ...measure.metrics import measure
from ...names import is_of_cache
from ...states import State, Trace
from ...tolerance import Tolerance
from ..constants import LIKE_ANOTHER_ROW

KEPT = ("key", "value")
"""What a cache holds of each token."""


@dataclass(frozen=True)
class Span:
    """The steps of a sequence: the first has the prompt, every other one token."""

    prompt: int
    steps: int
    past: int = 0
    """Tokens before the prompt, of which a given cache knows."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.steps

    def step_of(self, token: int) -> int:
        return max(0, token - self.prompt + 1)

    def tokens_in(self, step: int) -> range:
        return (
            range(self.prompt) if step == 0 else range(self.prompt + step - 1, self.prompt + step)
        )


def has_slots(name: str) -> bool:
    """Whether a point is what a cache holds by token."""
    return is_of_cache(name) and name.rpartition(".")[2] in KEPT


def places(shape: Sequence[int], name: str, span: Span) -> range | None:
    """The tokens of the sequence that a state's second axis stands for; None: not by token."""
    if len(shape) < 3:
        return None
    if shape[1] == span.tokens:
        return range(span.tokens)
    if has_slots(name):  # of a window, the last ones; of a given cache, also those before
        return range(span.tokens - shape[1], span.tokens)
    return None


def token_ratios(
    state: State, true: Array, known: Honest, most: float, keep: Array | None
) -> Array:
    """By (row, position): the error of a token over what the worst may have; 0 where padded."""
    off = np.abs(widened(state.array) - true).reshape(-1, true.shape[-1]).astype(np.float64)
    rows = np.arange(len(off)) if keep is None else np.flatnonzero(keep)
    if len(rows) != len(known.weights.tokens):
        return np.zeros(true.shape[:2])
    with np.errstate(all="ignore"):
        sizes = np.sqrt(np.square(off[rows] * known.weights.channels).sum(1))
        ratios = sizes * known.weights.tokens / most if most > 0 else sizes / np.float64(0)
    found: Float64 = np.zeros(len(off))
    found[rows] = np.nan_to_num(ratios, nan=np.inf, posinf=np.inf)
    per_token = len(off) // (true.shape[0] * true.shape[1])
    per_row: Array = found.reshape(true.shape[0], true.shape[1], per_token).max(-1)
    return per_row


def room_of(allowed: Allowed, reference: Array) -> Array:
    """What each element may be off."""
    room: Array = allowed.atol * allowed.scale + allowed.rtol * np.abs(widened(reference))
    return room


def shares(off: Array, room: Array, keep: Array | None) -> Array:
    """By (row, position): the largest share of its room that an element is off; 0 where padded."""
    with np.errstate(all="ignore"):
        each = np.where(off == 0, 0.0, off / room)
    most: Array = np.nan_to_num(each, nan=np.inf, posinf=np.inf).reshape(*off.shape[:2], -1).max(-1)
    return most if keep is None else np.where(keep, most, 0.0)


def ratios_of(
    sides: tuple[Trace, Trace],
    at_fault: Trace,
    calibration: Calibration | None,
    rows: Sequence[LayerDrift],
) -> dict[str, Array]:
    """Of each point that has tokens, in units of what its worst token may be off.

    That is the distance from the truth, of the side at fault; where a tolerance decides, that
    between the sides.
    """
    found = {}
    for row in rows:
        ratios = _by_truth(at_fault, calibration, row) if row.truth else _by_tolerance(sides, row)
        if ratios is not None:
            found[row.point.name] = ratios
    return found


def _by_tolerance(sides: tuple[Trace, Trace], row: LayerDrift) -> Array | None:
    name, allowed = row.point.name, row.tolerance
    ours, theirs = (side.state(name) for side in sides)
    if ours is None or theirs is None or allowed is None or row.metrics is None:
        return None
    if ours.array.ndim < 3 or ours.shape != theirs.shape:
        return None
    a, b = (widened(side.array).astype(np.float64) for side in (ours, theirs))
    with np.errstate(all="ignore"):
        off = np.where(a == b, 0.0, np.abs(b - a))  # equal infinities are no difference
    return shares(off, room_of(allowed, a), sides[0].probe.keep(name, ours.shape))


def _by_truth(trace: Trace, calibration: Calibration | None, row: LayerDrift) -> Array | None:
    if calibration is None or row.truth is None:
        return None
    name = row.point.name
    state, true = trace.state(name), calibration.truth.state(name)
    known = calibration.total.get(name)
    if state is None or true is None or known is None:
        return None
    if true.array.ndim < 3 or true.array.shape != state.shape:
        return None
    most, keep = row.truth.norms["allowed"].token_worst, trace.probe.keep(name, state.shape)
    return token_ratios(state, true.array, known, most, keep)


def introduced_ratios(
    truth: object, trace: Trace, calibration: Calibration, rows: Sequence[LayerDrift]
) -> dict[str, Array]:
    """The same for what each layer made itself, where blame was computed.

    One more replay of the truth: a token's size alone would not do beside an attention sink, whose
    few channels outweigh all others.
    """
    blamed = {row.point.name: row.blame for row in rows if row.blame is not None}
    found: dict[str, Array] = {}

    def meet(own: State, made: State) -> None:
        name = made.point.name
        blame, known = blamed.get(name), calibration.own.get(name)
        if blame is None or known is None or made.array.ndim < 3:
            return
        most, keep = blame.norms["allowed"].token_worst, trace.probe.keep(name, own.shape)
        found[name] = token_ratios(own, made.array, known, most, keep)

    if blamed:
        fitting = tuple(state for state in trace if _fits(state, calibration.truth))
        replay_pairs(truth, replace(trace, states=fitting), meet)
    return found


def of_other_rows(trace: Trace, truth: Trace, rows: Sequence[LayerDrift]) -> frozenset[str]:
    """What caches hold that is wrong, where it is what another row should have."""
    return frozenset(
        name
        for row in rows
        if not row.ok and is_of_cache(name := row.point.name) and _is_mixed(name, trace, truth)
    )


def _is_mixed(name: str, trace: Trace, truth: Trace) -> bool:
    mine, true = trace.state(name), truth.state(name)
    if mine is None or true is None or mine.shape != true.shape or mine.array.ndim < 2:
        return False
    slots = mine.shape[1] if has_slots(name) else 1
    ours, exact = (
        widened(side.array).astype(np.float64).reshape(len(side.array), slots, -1)
        for side in (mine, true)
    )
    for row, held in enumerate(ours):
        apart = np.linalg.norm(exact - held, axis=-1)  # by row and slot
        others = np.delete(apart, row, 0)
        if len(others) and (others.min(0) < LIKE_ANOTHER_ROW * apart[row]).any():
            return True
    return False


def _fits(state: State, truth: Trace) -> bool:
    true = truth.state(state.point.name)
    return true is None or true.shape == state.shape


def first_token(row: LayerDrift, ratios: Array | None) -> int | None:
    """Where along its axis a point that drifts does so first: beyond what is allowed, or most."""
    if row.ok or ratios is None or not ratios.size:
        return None
    worst = ratios.max(0)
    beyond = np.flatnonzero(worst > 1)
    return int(beyond[0]) if len(beyond) else int(worst.argmax())


def step_rows(
    step: int,
    span: Span,
    sides: tuple[Trace, Trace],
    rows: Sequence[LayerDrift],
    ratios: Mapping[str, Array],
) -> tuple[LayerDrift, ...]:
    """Every point of one step; those that have no token in it are left out."""
    reference, candidate = sides
    found = []
    for row in rows:
        name = row.point.name
        ours, theirs = reference.state(name), candidate.state(name)
        if ours is None or theirs is None or ours.shape != theirs.shape or row.metrics is None:
            continue
        along = places(ours.shape, name, span)
        wanted = set(span.tokens_in(step))
        if along is None:
            chosen = None if step else slice(None)
        else:
            at = [index for index, token in enumerate(along) if token in wanted]
            chosen = slice(at[0], at[-1] + 1) if at else None
        if chosen is not None:
            found.append(_part(row, ours, theirs, chosen, reference, ratios.get(name)))
    return tuple(replace(row, index=index) for index, row in enumerate(found))


def _part(
    row: LayerDrift, ours: State, theirs: State, at: slice, trace: Trace, ratios: Array | None
) -> LayerDrift:
    """One point in one step."""
    keep = trace.probe.keep(row.point.name, ours.shape)
    a, b = (np.ascontiguousarray(side.array[:, at]) for side in (ours, theirs))
    allowed = row.tolerance
    tolerance = Tolerance(0.0)
    if allowed is not None:  # the scale is that of all steps together
        tolerance = Tolerance(allowed.atol * allowed.scale, allowed.rtol)
    measured = measure(a, b, tolerance, None if keep is None else keep[:, at])
    needed = measured.exceeded if ratios is None else float(ratios[:, at].max(initial=0.0))
    first = first_token(row, ratios)
    here = first is not None and at.start is not None and at.start <= first < (at.stop or first + 1)
    beyond = not row.ok and (needed > 1 or here)
    norm = "token_worst" if row.truth is not None and ratios is not None else ""
    norm = norm or (allowed.norm if allowed else "max_abs")
    side = allowed.side if allowed else "candidate"
    return LayerDrift(
        row.point,
        0,
        a.shape,
        row.dtypes,
        row.verdict if beyond else "ok",
        measured.metrics,
        Allowed(tolerance.atol, tolerance.rtol, 1.0, needed, norm=norm, side=side),
    )
