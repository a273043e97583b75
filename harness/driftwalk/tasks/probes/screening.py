"""A probe of a large set, screened: both sides run once, and every state is compared.

Judged whole, a probe takes more runs than that: the reference's blocks run on the candidate's
states, both sides run with nothing instrumented, one run watched for what it exercises. A screened
probe has none of these. It is clear where whatever they could find is known from other probes of
the set, or shows here as well:

- both sides give the same bits at every point: then the blocks cannot differ either;
- or each error is well within its allowance and of the size that it usually has (judge/habit.py).

A probe that is not clear is judged whole: a screen never says that something drifts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ...adapter import Backend, Replays
from ...errors import DriftwalkError
from ...judge.attention import same_attention
from ...judge.exact import is_exact
from ...judge.habit import STEP, Habit, Sizes, sizes_of, step_of
from ...judge.honest import LIKE_THE_YARDSTICK, allowed
from ...judge.outputs import OutputNames
from ...judge.replay import introduced_errors
from ...judge.sides import JudgedSide
from ...judge.witness import Witness, witness_device
from ...make_report import Terms
from ...measure.decisions import Decisions, decision_impact
from ...measure.norms import Norms
from ...meeting import Run, Standards
from ...names import LOGITS
from ...observing import observe
from ...progress import Progress
from ...result import Observer, Report
from ...stage import Setting, Stage, is_graph, open_stage
from ...states import Probe, State, Trace, same_bits
from ...tolerance import Policy, Tolerance, make_policy
from ...workers import in_threads
from ..constants import LEARNED_PROBES, SCREENED_USE
from .collecting import largest_use_of
from .together import Runs

_WORTH_A_THREAD = 1 << 13
"""Elements of a state, and of the step to it, that are compared faster than a thread is woken."""

_OWN_WAYS = ("spill", "budget", "stream", "max_format_kl", "min_format_snr")
"""Options that ask for more than a screen looks at."""


@dataclass(frozen=True)
class Glance:
    """What one candidate came to on one probe, screened."""

    why: str = ""
    """Why the probe must be judged whole; empty where it is clear."""
    used: float | None = None
    decided: Decisions | None = None
    sizes: Sizes = field(default_factory=dict)
    never: bool = False
    """No other probe of the set can be screened either."""


@dataclass
class _Known:
    """What was learned of one candidate from probes that were judged whole."""

    habit: Habit = field(default_factory=Habit)
    differing: int = 0
    """Probes on which its blocks were compared with the reference's ..."""
    is_copy: bool = False
    """... most of which compute the same bits: then any other difference counts."""
    changed_by_looking: bool = False
    """A side gave other bits when nothing was instrumented: that is checked for every probe."""


class Screen:
    """Screens the probes of one set, on backends that are open."""

    def __init__(self, model: Any, sides: Sequence[Backend], options: Mapping[str, Any]) -> None:
        self._model, self._sides = model, tuple(sides)
        self._policy: Policy = make_policy(options.get("policy", "calibrated"))
        self._allow = tuple(options.get("allow_missing", ()))
        self._cache, self._place = options.get("cache", True), options.get("witness", "auto")
        self._known = [_Known() for _ in sides[1:]]
        self._kinds: set[tuple[object, ...]] = set()
        self._learned = 0

    @classmethod
    def of(cls, model: Any, sides: Sequence[object], options: Mapping[str, Any]) -> Screen | None:
        """None where probes cannot be screened: only blocks of a model that torch runs can be."""
        plain = options.get("depth", "block") == "block"
        plain = plain and options.get("blame", "auto") in ("auto", False)
        more = any(options.get(name) not in (None, False) for name in _OWN_WAYS)
        opened = [side for side in sides if isinstance(side, Backend)]
        if not plain or more or is_graph(model) or len(opened) < len(sides):
            return None
        return cls(model, opened, options)

    def wants_whole(self, probe: Probe) -> bool:
        """Whether a probe must be judged whole whatever it shows: the first ones of each kind.

        Whether looking at states changes what a backend gives, and which kernels it takes, depends
        on shapes; those up to the same power of two are of one kind.
        """
        kind = _kind(probe)
        is_first = kind not in self._kinds
        self._kinds.add(kind)
        return is_first or self._learned < LEARNED_PROBES

    def learn(self, glances: Sequence[Glance], reports: Sequence[Report]) -> None:
        """A probe was judged whole, too: where it passes, it is as probes usually are."""
        self._learned += 1
        for known, glance, report in zip(self._known, glances, reports, strict=True):
            if report.ok and glance.sizes:
                known.habit.learn(glance.sizes)
            seen = report.observer.values()
            known.changed_by_looking |= any(one.checked and not one.bit_identical for one in seen)

    def look(self, runs: Runs) -> list[Glance]:
        """Each candidate on one probe, by what all sides gave on it."""
        if runs.failed:
            return [Glance(f"it cannot be screened: {runs.failed}")] * len(self._known)
        setting = Setting(self._model, runs.probe)
        try:
            with open_stage(setting, self._sides) as stage, ExitStack() as left:
                return list(self._looked(stage, runs.traces, left))
        except DriftwalkError as error:
            return [Glance(f"it cannot be screened: {error}")] * len(self._known)

    def beyond(self, runs: Runs) -> list[str]:
        """For each candidate the first point that is beyond its allowance in these very runs.

        They are judged whole. Empty where there is no such point.
        """
        with (
            open_stage(Setting(self._model, runs.probe), self._sides) as stage,
            ExitStack() as left,
        ):
            run = self._begun(stage, runs.traces, left)
            pairs = zip(stage.backends[1:], runs.traces[1:], strict=True)
            return [self._beyond(run, candidate, met) for candidate, met in pairs]

    def _beyond(self, run: Run, candidate: Backend, met: Trace) -> str:
        standards = Standards.of(run, candidate, self._policy)
        walk = standards.walk(run, candidate, Terms(self._policy, self._allow))
        walk.meet_all(met, run.stage.backends[0])
        return next((row.point.name for row in walk.layers() if not row.ok), "")

    def _begun(self, stage: Stage, traces: Sequence[Trace], left: ExitStack) -> Run:
        stage.torch_model.evidence.offer(stage.backends[0], traces[0])
        place, quiet = witness_device(self._place, stage.backends), Progress()
        witness = Witness(stage.torch_model, stage.probe, self._cache, quiet, device=place)
        left.callback(witness.close)
        return Run(stage, traces[0], Observer(checked=False), witness, "block", quiet)

    def _looked(self, stage: Stage, traces: Sequence[Trace], left: ExitStack) -> Iterator[Glance]:
        run, candidates, others = self._begun(stage, traces, left), stage.backends[1:], traces[1:]
        for known, candidate, met in zip(self._known, candidates, others, strict=True):
            standards = Standards.of(run, candidate, self._policy)
            why = _beyond_a_screen(standards, self._policy)
            if why:
                ours = standards.ours
                chooses = ours is not None and bool(ours.choices)
                own = standards.witness.has_own_model
                yield Glance(why, never=own or chooses or bool(self._policy.rules))
                continue
            why = self._watched(known, run, candidate, met)
            if why:
                yield Glance(why)
            elif self._policy.calibrated:
                yield _Look(run, met, standards, known).glance
            else:
                yield self._by_table(run, candidate, met, standards)

    def _watched(self, known: _Known, run: Run, candidate: Backend, met: Trace) -> str:
        """Whether looking at states changes too much, of sides that are known to be changed."""
        sides = {run.stage.backends[0]: run.trace, candidate: met}
        for side, trace in sides.items() if known.changed_by_looking else ():
            seen = observe(side, run.stage.probe, trace.outputs, self._policy, run.depth)
            if not seen.within_tolerance:
                return f"looking at states changes what {side.spec} gives"
        return ""

    def _by_table(self, run: Run, candidate: Backend, met: Trace, standards: Standards) -> Glance:
        """By a policy without a truth, which asks for no further run: judged as it would be."""
        walk = standards.walk(run, candidate, Terms(self._policy, self._allow))
        walk.meet_trace(met)
        layers = walk.layers()
        bad = next((row for row in layers if not row.ok), None)
        why = "" if bad is None else f"{bad.point.name} is beyond its tolerance"
        return Glance(why, largest_use_of(layers), walk.decisions)


def _kind(probe: Probe) -> tuple[object, ...]:
    """Names, dtypes and rough shapes of the inputs, and whether there is padding."""
    arrays = sorted(probe.inputs.items())
    shapes = ((n, a.dtype.str, *(max(0, d - 1).bit_length() for d in a.shape)) for n, a in arrays)
    masked = any("mask" in name and not array.all() for name, array in arrays)
    return (masked, *sorted(probe.others), *shapes)


def _beyond_a_screen(standards: Standards, policy: Policy) -> str:
    """Why no probe like this can be screened; empty where it can."""
    if standards.witness.has_own_model or standards.split is not None:
        return "the candidate is quantised"
    if not policy.calibrated:
        return ""
    if policy.rules:
        return "points have rules of their own"
    if standards.ours is None or standards.theirs is None or standards.doubt:
        return "there is no calibration"
    for one in (standards.ours, standards.theirs.calibration):
        if one.tied or one.chance or one.choices or one.by_chance.entries or one.by_chance.shapes:
            return "the model makes choices that honest arithmetic may tip over"
    return ""


class _Look:
    """One candidate on one probe, both sides with a calibration."""

    def __init__(self, run: Run, met: Trace, standards: Standards, known: _Known) -> None:
        assert standards.ours is not None
        assert standards.theirs is not None
        self._run, self._met, self._known = run, met, known
        self._ours, self._theirs = standards.ours, standards.theirs
        self._sizes: dict[str, tuple[float, ...]] = {}
        self._small: set[str] = set()
        self._used: list[float] = []

    @property
    def glance(self) -> Glance:
        why = self._reference() or self._candidate()
        if not why and not all(self._is_equal(state) for state in self._met):
            why = self._unusual()
            if not why:
                self._known.habit.learn(self._sizes)
        decided = None if why else self._decided()
        if decided is not None and decided.flips > decided.ties:
            why = "a decision flips"
        return Glance(why, max(self._used, default=None), decided, self._sizes if why else {})

    def _reference(self) -> str:
        """Why the reference is not within its own allowance."""
        for name in self._theirs.errors:
            used = self._theirs.judged(name)
            if used is None or not used.needed <= 1:
                return f"the reference is beyond its allowance at {name}"
            self._used.append(used.needed)
        return ""

    def _candidate(self) -> str:
        """Why the candidate is not well within its own: every state is compared with the truth."""
        trace, near = self._run.trace, ""
        if set(self._met.names) != set(trace.names):
            return "one side has points that the other lacks"
        floats = [state for state in self._met if not is_exact(state)]
        pairs = list(zip((None, *floats), floats, strict=False))
        errors = in_threads(self._measured, pairs, lambda pair: pair[1].elements(), _WORTH_A_THREAD)
        error_of = {state.point.name: one for state, one in zip(floats, errors, strict=True)}
        for state in self._met:
            name, other = state.point.name, trace.state(state.point.name)
            if other is None or other.shape != state.shape:
                return f"{name} has another shape"
            if is_exact(state) or is_exact(other):
                if not self._is_equal(state):
                    return f"{name} differs, and holds whole numbers"
                continue
            (error, step), honest = error_of[name], self._ours.total.get(name)
            if error is None or honest is None:
                return f"the truth has no {name}"
            most = self._ours.allowed(name)
            used = error.over(most)[0] if math.isfinite(most.max_abs) else math.inf
            self._used.append(used)
            self._sizes[name] = sizes_of(error, honest)
            if step is not None:
                self._note_step(name, step)
            near = near or ("" if used <= SCREENED_USE else name)
        return f"{near} is near its allowance, or beyond it" if near else ""

    def _measured(self, pair: tuple[State | None, State]) -> tuple[Norms | None, Norms | None]:
        """The error of a state; and what it is beyond that of the state before, of one stream."""
        before, state = pair
        name, truth = state.point.name, self._ours.truth
        error, known = self._ours.error(state), self._ours.own.get(name)
        if error is None or known is None or before is None or before.shape != state.shape:
            return error, None
        true_before = truth.state(before.point.name)
        if true_before is None or true_before.shape != before.shape:
            return error, None
        keep = truth.probe.keep(name, state.shape)
        now = state.array, truth[name]
        return error, step_of(now, (before.array, true_before.array), keep, known)

    def _note_step(self, name: str, step: Norms) -> None:
        """Where a step is well within what the layer may introduce, it is nothing to look into."""
        known = self._ours.own[name]
        self._sizes[f"{name}{STEP}"] = sizes_of(step, known)
        if step.over(allowed(known, LIKE_THE_YARDSTICK))[0] <= SCREENED_USE:
            self._small.add(f"{name}{STEP}")

    def _is_equal(self, state: State) -> bool:
        other = self._run.trace.state(state.point.name)
        return other is not None and same_bits({"": other.array}, {"": state.array})

    def _unusual(self) -> str:
        """Why it is not like the probes that were judged whole."""
        known = self._known
        if known.differing < LEARNED_PROBES:
            known.differing += 1
            known.is_copy = known.is_copy or self._is_copy()
        if known.is_copy:
            return "the candidate is a copy of the reference, and differs from it"
        point = known.habit.unusual({n: s for n, s in self._sizes.items() if n not in self._small})
        return f"{point} is farther off than it usually is" if point else ""

    def _is_copy(self) -> bool:
        """Whether most of its layers compute bit by bit what the reference's blocks do.

        Then the layers of a probe that is judged whole are allowed less (judge/sides.py).
        """
        blocks, infos = self._run.stage.backends[0], (self._met.backend, self._run.trace.backend)
        if not isinstance(blocks, Replays) or not same_attention(*infos):
            return False
        side = JudgedSide("candidate", self._ours)
        own = introduced_errors(blocks, self._met, self._ours.own_error)
        side.judge_layers(own, same_code=infos[0].name == infos[1].name)
        return side.is_copy

    def _decided(self) -> Decisions | None:
        trace = self._run.trace
        ours, theirs = trace.state(LOGITS), self._met.state(LOGITS)
        if ours is None or theirs is None or not OutputNames.of(trace).decides:
            return None
        room = self._ours.most_allowed(LOGITS).max_abs
        keep = trace.probe.keep(LOGITS, ours.shape)
        return decision_impact(ours.array, theirs.array, keep, Tolerance(room), 1.0)
