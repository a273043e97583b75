"""The calibrated policy: a side may be at most YARDSTICKS times as wrong as plain eager PyTorch is.

    error        e_c(n) = |c_n - x_n|        e_y(n) = |y_n - x_n|
    drift at n   <=>   e_c(n) > limit * e_y(n) + floor_n        in any judged norm (honest.py)
    floor_n      FLOOR units of roundoff of the side's dtype, times the size of x_n

x is the truth (float64), c the side that is judged, y the yardstick: eager PyTorch at its dtype.
No magic number about the model is asked for: the model and the probe say how much noise is honest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..adapter import Backend, Jitters, Sink
from ..dtypes import FORMATS, Array
from ..errors import BackendError
from ..layer_drift import Closer, TruthErrors
from ..measure.norms import ZERO, Norms, channel_but_few, difference, distance, ratio
from ..mixture import Mixture
from ..names import is_output
from ..registry import MIXED, create, load_target
from ..states import Probe, State, Trace
from ..workers import in_threads
from .conditioning import doubt_of
from .constants import FINE_ROUNDOFF, TIE_OF_SIDES, YARDSTICKS
from .exact import ByChance, HonestRuns, float_states, is_exact, masked_out
from .honest import ROOM, Honest, allowed, honest, room_needed
from .margins import HonestChoice, honest_choices
from .replay import measured_pairs
from .ties import left_to_chance, other_branch, sentence_on, tied_tokens
from .unrounded import added, unrounded

Keep = Callable[[Trace], Trace]
"""Gives the same trace, its arrays in a better place."""

__all__ = ["Calibration", "Keep", "calibrate", "closer", "truth_errors", "yardstick_spec"]


def yardstick_spec(dtype: str, device: str = "cpu", ranges: str = "", sums: str = "") -> str:
    """Plain eager PyTorch at a dtype; formats and sums that a device may lack are emulated.

    The weights of a large model are lent to it, on a GPU too. `ranges` are options that have it run
    in ranges of blocks.
    """
    plain = dtype in ("fp64", "fp32") and not sums
    lent = "" if device == "cpu" else ",stream=large"
    if plain:
        return f"torch:{device}:{dtype}{lent}{ranges}"
    return f"emulated:{dtype}{ranges}" if device == "cpu" else f"emulated:{device}:{dtype}{lent}"


def open_yardstick(
    mixture: Mixture, model: object, device: str = "cpu", ranges: str = ""
) -> Backend:
    """Plain eager PyTorch at a dtype, or with a dtype for each point."""
    if not mixture.dtypes:
        own = f",convolutions={mixture.convolutions}" if mixture.convolutions else ""
        own += f",sums={mixture.sums}" if mixture.sums else ""
        return create(yardstick_spec(mixture.dtype, device, ranges, mixture.sums) + own, model)
    made: Backend = load_target(MIXED)(mixture, model, device)
    return made


@dataclass(frozen=True, eq=False)
class Calibration:
    """The truth's states, and how wrong honest arithmetic is at each of them."""

    truth: Trace
    total: Mapping[str, Honest]
    own: Mapping[str, Honest]
    """The part of that error which each layer made itself."""
    mixture: Mixture
    """What it speaks for: the dtypes of the yardstick, and how it computes."""
    doubt: str = ""
    """Why this truth cannot be trusted; empty where it can."""
    tied: Mapping[str, Honest] = field(default_factory=dict)
    """Points that have tokens at a tie (ties.py): the same as `total`, these given room to tip."""
    tipped: Mapping[str, Honest] = field(default_factory=dict)
    """The same for a side that has tipped over in a layer before."""
    ties: str = ""
    """What is to be said of ties."""
    chance: Mapping[str, str] = field(default_factory=dict)
    """Points at which too many tokens stand at a tie, and a sentence that says so."""
    whole: tuple[State, ...] = ()
    """The truth's outputs of whole numbers."""
    by_chance: ByChance = field(default_factory=ByChance)
    """What of these, and of shapes, honest arithmetic changes."""
    choices: tuple[HonestChoice, ...] = ()
    """What the truth chooses, and how far from flipping (margins.py)."""
    steady: Mapping[str, Honest] = field(default_factory=dict)
    """The same as `total` without what the yardstick's own flips do; empty where it has none."""
    model_errors: Mapping[str, Norms] = field(default_factory=dict)
    """The errors of the run of the model itself that is the evidence for what is stored."""

    @property
    def dtype(self) -> str:
        """The coarsest of all."""
        return self.mixture.dtype

    @property
    def all_states(self) -> Trace:
        """What the truth gave, whole numbers included."""
        return replace(self.truth, states=(*self.truth.states, *self.whole))

    @property
    def roundoff(self) -> float:
        """Of that dtype."""
        return FORMATS[self.dtype].roundoff

    @property
    def outputs_apart(self) -> float:
        """How far, relatively, an honest output may be from the truth: L2, at the worst of them."""
        outputs = {name: one for name, one in self.total.items() if is_output(name)}
        return max(
            (ratio(self.allowed(name).l2, one.size.l2) for name, one in outputs.items()),
            default=0.0,
        )

    def allowed(self, point: str, room: Norms = ROOM) -> Norms:
        """What the total error at a point may be."""
        return allowed(self.total.get(point), room)

    def allowed_own(self, point: str, room: Norms = ROOM) -> Norms:
        """What a layer may introduce by itself."""
        return allowed(self.own.get(point), room)

    def most_allowed(self, point: str, room: Norms = ROOM) -> Norms:
        """What the total error may be at most, whatever tipped over."""
        most = self.allowed(point, room)
        for branch in (self.tied, self.tipped):
            if point in branch:
                most = most.or_larger(allowed(branch[point], room))
        return most

    def noise(self, point: str) -> Norms:
        """The yardstick's error."""
        return self.total[point].noise if point in self.total else ZERO

    def size(self, point: str) -> Norms:
        return self.total[point].size if point in self.total else ZERO

    def room(self, introduced: Mapping[str, Norms]) -> Norms:
        """How much room a candidate needs that introduces these errors."""
        return room_needed(introduced, self.own)

    def error(self, state: State, by: Mapping[str, Honest] | None = None) -> Norms | None:
        """How far a state is from the truth; None where the truth has no such point or shape.

        In units of `total`, or of `tied` or `tipped` where that is given.
        """
        name, true = state.point.name, self.truth.state(state.point.name)
        if true is None or true.array.shape != state.array.shape:
            return None
        return self._distance(self.total if by is None else by, name, state.array, true.array)

    def between(self, point: str, a: Array, b: Array) -> Norms:
        """How far two states are apart, each token in units of the honest noise of all layers."""
        return self._distance(self.total, point, a, b)

    def own_error(self, point: str, a: Array, b: Array) -> Norms:
        """The same in units of the honest noise of that one layer."""
        return self._distance(self.own, point, a, b)

    def _distance(self, by: Mapping[str, Honest], point: str, a: Array, b: Array) -> Norms:
        keep, known = self.truth.probe.keep(point, a.shape), by.get(point)
        error = distance(a, b, keep, None if known is None else known.weights)
        if known is None or known.alone <= 1 or not math.isfinite(error.channel):
            return error
        broad = channel_but_few(a, b, keep, known.weights)
        return replace(error, channel=max(error.channel / known.alone, broad))


def truth_errors(
    calibration: Calibration, point: str, reference: Norms, candidate: Norms, allowance: Norms
) -> TruthErrors:
    """What the report says about both sides at a point."""
    return TruthErrors(
        reference=reference.l2,
        candidate=candidate.l2,
        yardstick=calibration.noise(point).l2,
        scale=calibration.size(point).l2,
        # In units in which the limit is YARDSTICKS, whatever the norm, and with the floor counted.
        ratio=YARDSTICKS * candidate.over(allowance)[0],
        closer=closer(reference.l2, candidate.l2),
        norms={
            "reference": reference,
            "candidate": candidate,
            "yardstick": calibration.noise(point),
            "allowed": allowance,
        },
    )


def closer(reference: float, candidate: float) -> Closer:
    """Which side is nearer to the truth, if the difference means anything."""
    if candidate * TIE_OF_SIDES < reference:
        return "candidate"
    return "reference" if reference * TIE_OF_SIDES < candidate else "tie"


def calibrate(
    truth: Backend,
    yardstick: Backend,
    probe: Probe,
    exact: Trace | None = None,
    keep: Keep | None = None,
    tips: bool = False,
) -> Calibration:
    """Run the truth, the truth with roundoffs, the yardstick, and the truth on its states.

    `exact` is what the truth gave on this probe already, `keep` puts what it gives elsewhere;
    `tips`: the model rounds numbers while it runs.
    """
    everything, mixture = exact or truth.trace(probe), Mixture.of(yardstick.info)
    if exact is None and keep is not None:
        everything = keep(everything)
    exact = float_states(everything)
    finite = in_threads(lambda state: _is_finite(state, probe), exact.states, State.elements)
    if not all(finite):
        first = exact.states[finite.index(False)].point.name
        raise BackendError(f"the truth itself is not finite at {first}.")
    run = yardstick.trace(probe)
    honest_runs = HonestRuns(everything)
    for state in run:
        honest_runs.meet(state)
    made = float_states(run, like=exact)
    noisy = _jittered(truth, exact, made, mixture, honest_runs.meet)
    other = other_branch(truth, exact, made, noisy, honest_runs.meet)
    total, tied, tipped = (
        _honest_states(exact, made, mixture, noisy, branch, tips)
        for branch in (None, other.within, other.onwards)
    )
    ties = tied_tokens(exact, made, other)
    chance = left_to_chance(exact, made, ties, other, mixture.dtype)
    # The roundoffs of a mixture's finest part say nothing about its coarsest.
    examined = None if mixture.dtypes else noisy
    doubt = doubt_of(exact, made, examined, FORMATS[mixture.dtype], other.onwards, chance)
    # In coarse formats rounding the state is most of what a layer introduces, and known.
    fine = FORMATS[mixture.dtype].roundoff <= FINE_ROUNDOFF
    own_draws = _own_errors(truth, noisy) if noisy is not None and fine else {}
    jumps = added(other.jumps(exact), unrounded(truth, made, mixture))
    del noisy, examined  # as large as the truth, and of no further use
    routes = honest_choices(truth, yardstick, exact, made, mixture)
    return Calibration(
        truth=exact,
        total=total,
        own=honest_layers(truth, made, mixture, own_draws, jumps, tips),
        mixture=mixture,
        doubt=doubt,
        tied=tied,
        tipped=tipped,
        ties=sentence_on(ties, mixture.dtype),
        chance=chance,
        whole=tuple(state for state in everything if is_exact(state)),
        by_chance=honest_runs.by_chance,
        choices=routes.choices,
        steady=routes.steady,
    )


def _is_finite(state: State, probe: Probe) -> bool:
    """Whether a state of the truth is, but for what the model has masked out in its outputs."""
    keep = probe.keep(state.point.name, state.array.shape)
    finite, masked = np.isfinite(state.array), masked_out(state)
    if masked is not None:
        finite |= masked
    return bool(finite.all() if keep is None else finite[keep].all())


def honest_layers(
    truth: object,
    made: Trace,
    mixture: Mixture,
    draws: dict[str, Array] | None = None,
    jumps: Mapping[str, Array] | None = None,
    tips: bool = False,
) -> dict[str, Honest]:
    """What each layer of an honest trace introduces, given its own previous states.

    `draws` are the errors that the layers of another honest run introduce, let go one by one;
    `jumps` what a choice in the layer changes where it tips over, or a cast that is left out.
    """
    others, branches = draws or {}, jumps or {}

    def known(own: State, true: State) -> Honest:
        name, array = true.point.name, true.array
        keep = made.probe.keep(name, array.shape)
        roundoff = FORMATS[mixture.at(name)].roundoff
        runs = [array + others.pop(name)] if name in others else []
        tip = array + branches[name] if name in branches else None
        return honest(own.array, array, keep, roundoff, runs, tip, tips)

    return measured_pairs(truth, made, known)


def _honest_states(
    exact: Trace,
    made: Trace,
    mixture: Mixture,
    noisy: Trace | None,
    other: Mapping[str, Array] | None = None,
    tips: bool = False,
) -> dict[str, Honest]:
    """How wrong the states of an honest trace are; from both draws, where there are two.

    With `other`, where choices tip over, and only for the points that it has.
    """
    coarsest = mixture.up_to(made.names)

    def known(state: State) -> Honest:
        name = state.point.name
        true = exact[name]
        second = noisy.state(name) if noisy is not None else None
        runs = [second.array] if second is not None else []
        roundoff, tip = coarsest[name].roundoff, other[name] if other is not None else None
        keep = exact.probe.keep(name, true.shape)
        return honest(state.array, true, keep, roundoff, runs, tip, tips)

    names = set(exact.names).intersection(exact.names if other is None else other)
    states = [state for state in made if state.point.name in names]
    found = in_threads(known, states, State.elements)
    return {state.point.name: one for state, one in zip(states, found, strict=True)}


def _jittered(
    truth: Backend, exact: Trace, made: Trace, mixture: Mixture, also: Sink
) -> Trace | None:
    """The truth with roundoffs, as far as it has the yardstick's points; None: it cannot.

    Each of its states is handed on to `also`.
    """
    if not isinstance(truth, Jitters):
        return None
    # Of a mixture, the finest: a second draw must not be noisier than what it stands for.
    roundoff = min(FORMATS[mixture.at(name)].roundoff for name in made.names)
    states: list[State] = []
    truth.jittered(exact.probe, roundoff / 2, states.append)
    for state in states:
        also(state)
    return float_states(replace(exact, states=tuple(states)), like=made)


def _own_errors(truth: object, trace: Trace) -> dict[str, Array]:
    """What each layer of a trace introduces, element by element."""

    def error(own: State, true: State) -> Array:
        with np.errstate(over="ignore"):
            return difference(own.array, true.array).astype(np.float32)

    return measured_pairs(truth, trace, error)
