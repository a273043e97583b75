"""How far each choice of a model is from flipping, in units of honest noise.

    scores s      the numbers that are ranked; o is what they say, t what was taken
    gap           s[o \\ t] - s[t \\ o], each sorted: how far apart what changed places is
    noise         |y - R|: the yardstick's scores, and the truth's with the yardstick's choices
    a tie         gap <= TIE_REACH * noise

The noise is free of what flips themselves do: the truth is made to choose as the yardstick did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..adapter import Backend, Chooses
from ..chosen import Choice, other_rows
from ..dtypes import FORMATS, Array, Float64
from ..measure.norms import ratio
from ..mixture import Mixture
from ..states import State, Trace
from .constants import FLOOR_ROUNDOFFS, TIE_REACH, YARDSTICKS
from .honest import Honest, honest


@dataclass(frozen=True, eq=False)
class HonestChoice:
    """One place where the truth chooses: what it chose, and how noisy what it went by is."""

    name: str
    module: str
    point: str
    op: str
    of: int
    descending: bool
    ordered: bool
    typical: float
    """The noise of the score in the middle ..."""
    share: float
    """... and as a part of the score itself."""
    roundoff: float
    weights_noise: float
    """Root mean square, of what the chosen ones count; 0 where that could not be seen."""
    taken: Array
    noise: Float64
    """Of each row, root mean square."""
    margins: Float64
    """Of each row, how many times the noise it is from flipping."""

    @property
    def best(self) -> int:
        return int(self.taken.shape[-1])

    @property
    def close(self) -> Array:
        found: Array = self.margins <= TIE_REACH
        return found

    def room(self, scores: Float64) -> Float64:
        """How far each score may be from another one that takes its place."""
        size = np.abs(np.where(np.isfinite(scores), scores, 0.0))
        room = np.maximum(
            TIE_REACH * self.typical,
            (TIE_REACH * self.share + FLOOR_ROUNDOFFS * self.roundoff) * size,
        )
        return np.maximum(room, YARDSTICKS * self.noise[:, None])

    def scores_used(self, theirs: Float64, own: Float64, counted: Array) -> float:
        """How much of what honest arithmetic may be off a side's scores are, all rows together."""
        known = np.isfinite(theirs) & np.isfinite(own) & counted[:, None]
        error, size = rms(theirs[known] - own[known]), rms(own[known])
        most = max(YARDSTICKS * rms(self.noise[counted]), FLOOR_ROUNDOFFS * self.roundoff * size)
        return ratio(error, most)

    def excess(self, made: Choice) -> Float64:
        """Of each row, how many times too far apart the scores are that changed places.

        0 where what was taken is what the scores say; at most 1 for a tie.
        """
        scores = made.scores if self.descending else -made.scores
        room, rows = self.room(scores), np.arange(len(scores))[:, None]
        if made.taken.shape != made.own.shape:
            return np.full(len(scores), np.inf)
        if self.ordered:
            gaps = np.abs(scores[rows, made.own] - scores[rows, made.taken])
            least = np.maximum(room[rows, made.own], room[rows, made.taken])
            times = _over(np.where(made.own == made.taken, 0.0, gaps), least)
            most: Float64 = np.max(times, axis=-1)
            return most
        own, taken = (_held(places, scores.shape) for places in (made.own, made.taken))
        lost, won = own & ~taken, taken & ~own
        least = np.where(lost | won, room, 0.0).max(-1)
        return np.where(lost.any(-1), _over(_gap(scores, lost, won), least), 0.0)


@dataclass(frozen=True, eq=False)
class HonestChoices:
    """All choices of a model, and the yardstick's states beside a truth that chose as it did."""

    choices: tuple[HonestChoice, ...] = ()
    steady: Mapping[str, Honest] = field(default_factory=dict)
    """Points at which the yardstick's own flips are part of its error: its error without them."""


def _gap(scores: Float64, lost: Array, won: Array) -> Float64:
    """How far apart those are that changed places, the best that was lost with the best that won.

    In a long row many do; none need be farther apart than its pair.
    """
    most = int(lost.sum(-1).max(initial=0))
    pairs = [-np.sort(np.where(held, -scores, np.inf), axis=-1)[:, :most] for held in (lost, won)]
    with np.errstate(invalid="ignore"):
        gaps = np.nan_to_num(pairs[0] - pairs[1], nan=0.0, posinf=np.inf)  # rows with fewer
    largest: Float64 = gaps.max(-1, initial=0.0)
    return largest


def _held(places: Array, shape: tuple[int, ...]) -> Array:
    held = np.zeros(shape, dtype=bool)
    np.put_along_axis(held, places, True, axis=-1)
    return held


def _over(gap: Float64, room: Float64) -> Float64:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(gap > 0, gap / room, 0.0)


def honest_choices(
    truth: Backend, yardstick: Backend, exact: Trace, made: Trace, mixture: Mixture
) -> HonestChoices:
    """What the truth and the yardstick choose; none is run where nothing is chosen.

    Where the yardstick chose as the truth does, the truth that was made to is the truth itself.
    """
    if not isinstance(truth, Chooses) or not isinstance(yardstick, Chooses):
        return HonestChoices()
    if truth.chooses_nothing:
        return HonestChoices()
    theirs = by_name(yardstick.chosen(exact.probe, ignore))
    states: list[State] = []
    forced = {name: one.taken for name, one in theirs.items()}
    alike = truth.chosen(exact.probe, states.append, forced=forced) if theirs else ()
    flipped = any(other_rows(one.taken, one.own, one.ordered).any() for one in alike)
    own = by_name(truth.chosen(exact.probe, ignore) if flipped else alike)
    roundoff, found = FORMATS[mixture.dtype].roundoff, []
    for one in alike:
        true, made_choice = own.get(one.name), theirs.get(one.name)
        if true is not None and made_choice is not None and fits(true, made_choice):
            found.append(_honest(true, made_choice, one, roundoff))
    steady = _steady(exact, made, states, mixture) if flipped else {}
    return HonestChoices(tuple(found), steady)


def _steady(
    exact: Trace, made: Trace, states: Sequence[State], mixture: Mixture
) -> dict[str, Honest]:
    """How wrong the yardstick is beside a truth that chose as it did."""
    coarsest, found = mixture.up_to(made.names), dict[str, Honest]()
    for state in states:
        name, run = state.point.name, made.state(state.point.name)
        fits_in = run is not None and run.array.shape == state.array.shape
        if run is not None and fits_in and exact.state(name) is not None:
            keep = exact.probe.keep(name, state.array.shape)
            found[name] = honest(run.array, state.array, keep, coarsest[name].roundoff)
    return found


def fits(one: Choice | HonestChoice, other: Choice | None) -> bool:
    """Whether two runs chose the same number of times among the same number of things."""
    rows = one.rows if isinstance(one, Choice) else len(one.taken)
    return other is not None and (rows, one.of) == (other.rows, other.of)


def ignore(state: State) -> None:
    pass


def _honest(true: Choice, made: Choice, steady: Choice, roundoff: float) -> HonestChoice:
    with np.errstate(invalid="ignore"):
        error = np.abs(made.scores - steady.scores)
    finite = np.isfinite(error) & np.isfinite(steady.scores)
    squares = np.square(np.where(finite, error, 0.0)).sum(-1)
    sizes = np.abs(steady.scores)
    some = finite & (sizes > 0)
    weights = 0.0
    if made.weights is not None and steady.weights is not None:
        weights = rms(made.weights - steady.weights)
    found = HonestChoice(
        name=true.name,
        module=true.module,
        point=true.point,
        op=true.op,
        of=true.of,
        descending=true.descending,
        ordered=true.ordered,
        typical=float(np.median(error[finite])) if finite.any() else 0.0,
        share=float(np.median(error[some] / sizes[some])) if some.any() else 0.0,
        roundoff=roundoff,
        weights_noise=weights,
        taken=true.taken,
        noise=np.sqrt(squares / np.maximum(1, finite.sum(-1))),
        margins=np.zeros(0),
    )
    return _with_margins(found, true)


def _with_margins(found: HonestChoice, true: Choice) -> HonestChoice:
    """The margin of a row: the gap at the edge of what is taken; of a sort, the smallest gap."""
    scores = true.scores if true.descending else -true.scores
    order = np.argsort(-scores, axis=-1, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=-1)
    room = np.take_along_axis(found.room(scores), order, axis=-1)
    if true.of < 2 or (not true.ordered and true.best >= true.of):
        return replace(found, margins=np.full(true.rows, np.inf))
    with np.errstate(invalid="ignore"):
        gaps = ranked[:, :-1] - ranked[:, 1:]
    gaps = np.where(np.isnan(gaps), np.inf, gaps)  # two that are masked out
    wide = np.maximum(room[:, :-1], room[:, 1:])
    times = np.where(gaps > 0, TIE_REACH * _over(gaps, wide), 0.0)
    margins = times.min(-1) if true.ordered else times[:, true.best - 1]
    return replace(found, margins=margins)


def rms(array: Float64) -> float:
    return float(np.sqrt(np.mean(np.square(array)))) if array.size else 0.0


def counted_rows(choice: HonestChoice, exact: Trace) -> Array:
    """Which of its rows are no padding; all where rows are not the tokens of its layer."""
    rows, state = len(choice.taken), exact.state(choice.point)
    keep = None if state is None else exact.probe.keep(choice.point, state.array.shape)
    if keep is None or keep.size != rows:
        return np.ones(rows, dtype=bool)
    return keep.reshape(-1).astype(bool)


def by_name(choices: Sequence[Choice]) -> dict[str, Choice]:
    return {one.name: one for one in choices}
