"""The walk: compare each candidate state with the reference's, in order of execution.

States may arrive one by one (`Walk.meet`), so that a candidate's trace need never be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from ..adapter import Backend, BackendInfo, Replays
from ..dtypes import FORMATS
from ..layer_drift import Allowed, Dtypes, LayerDrift, PointVerdict
from ..measure.decisions import Decisions, decision_impact
from ..measure.embeddings import Embedding, embedding
from ..measure.metrics import Measured, measure
from ..measure.norms import FAR, ZERO, Norms
from ..measure.reduction import begin
from ..mixture import Mixture, nominal_formats
from ..names import LOGITS
from ..result import Coverage
from ..states import State, Trace
from ..tolerance import Policy, Tolerance
from ..workers import in_threads
from .attention import is_attention_weights, same_attention
from .calibrate import Calibration, truth_errors
from .depth import alone, unlike, unlike_by_chance, with_extra
from .exact import ByChance, exact_row, is_exact, without_infinity, without_shared
from .outputs import OutputNames
from .replay import introduced_errors
from .sides import JudgedSide

_WORTH_A_THREAD = 1 << 17
"""Smaller states are compared faster than Python prepares the comparison: threads win nothing."""


class Walk:
    """Meets the candidate's states in any order; gives the layers in the reference's order."""

    def __init__(
        self,
        reference: Trace,
        candidate: BackendInfo,
        policy: Policy,
        allow_missing: Iterable[str] = (),
        calibration: Calibration | None = None,
        judged_reference: JudgedSide | None = None,
        by_chance: ByChance | None = None,
    ) -> None:
        policy.check_rules(reference.names)
        self._reference = reference
        self._candidate = Mixture.of(candidate)
        # A state may be stored wider than its backend computes (T5's blocks in fp16, TF32).
        self._nominal = nominal_formats(reference.names, reference.backend, candidate)
        self._policy = policy
        self._allow = tuple(allow_missing)
        self._same_attention = same_attention(candidate, reference.backend)
        self._same_code = candidate.name == reference.backend.name
        self._ours = JudgedSide("candidate", calibration) if calibration else None
        self._theirs = judged_reference
        judged = (calibration, judged_reference.calibration if judged_reference else None)
        self._by_chance = by_chance or ByChance.of_all(one.by_chance for one in judged if one)
        self._met: dict[str, LayerDrift] = {}
        self._waiting: list[Callable[[], None]] = []
        self._extra: list[LayerDrift] = []
        self._outputs = OutputNames.of(reference)
        self.decisions: Decisions | None = None
        self._embeddings: dict[str, Embedding] = {}

    @property
    def left_to_chance(self) -> str:
        """Why a side cannot be judged whose choices tipped over; empty where both can."""
        sides = (side for side in (self._ours, self._theirs) if side is not None)
        rows = self._met.items()
        agreed = {name for name, row in rows if row.metrics and row.metrics.max_abs == 0}
        floats = next((reason for side in sides if (reason := side.left_to_chance(agreed))), "")
        return floats or self.left_open

    @property
    def left_open(self) -> str:
        """The same, where shapes or whole numbers are the reason."""
        return self._by_chance.why_open(self._met.values(), self._candidate.dtype)

    @property
    def chance(self) -> frozenset[str]:
        """The points at which choices leave too little of a state to compare (ties.py)."""
        sides = (side for side in (self._ours, self._theirs) if side is not None)
        return frozenset(name for side in sides for name in side.calibration.chance)

    def can_replay(self, reference: Backend) -> bool:
        """Whether the reference's own blocks can say what the candidate's layers should give."""
        if self._ours is None or self._theirs is None or not isinstance(reference, Replays):
            return False
        ours, theirs = self._ours.calibration, self._theirs.calibration
        # Of another model (a quantised copy) the reference's blocks know nothing.
        same = ours is theirs or ours.truth.probe is theirs.truth.probe
        return same and theirs.roundoff <= ours.roundoff and self._theirs.holds

    def meet_all(self, candidate: Trace, reference: Backend) -> None:
        """Meet every state, and compare each layer with the reference's own block as well."""
        self.meet_trace(candidate)
        fits = all(row.verdict not in ("shape", "unknown") for row in self._met.values())
        if fits and self._ours is not None and self.can_replay(reference):
            measure = self._ours.calibration.own_error
            own = introduced_errors(reference, candidate, measure)
            # What a replay makes otherwise there (of states laid out otherwise) is its own doing.
            own |= dict.fromkeys(self._alike_so_far(candidate) & own.keys(), ZERO)
            self.judge_layers(own, may_be_copy=self._same_attention)

    def _alike_so_far(self, candidate: Trace) -> set[str]:
        """The points up to which both sides gave bit by bit the same."""
        alike: set[str] = set()
        for name in candidate.names:
            row = self._met.get(name)
            if row is not None and row.metrics is not None and row.metrics.max_abs != 0:
                break
            alike.add(name)
        return alike

    def meet_trace(self, candidate: Trace) -> None:
        """Meet every state of a trace, several at a time."""
        known = [s for s in candidate if self._reference.state(s.point.name) is not None]
        in_threads(self.meet, known, State.elements, _WORTH_A_THREAD)
        for state in candidate:
            if self._reference.state(state.point.name) is None:
                self.meet(state)
        self.settle()

    def judge_layers(
        self, introduced: Mapping[str, Norms], may_be_copy: bool = True, by_chance: bool = False
    ) -> None:
        """Judge the candidate's layers by what each made of its own input too."""
        if self._ours is not None:
            finer = Mixture.of(self._reference.backend).no_coarser_than(self._candidate)
            own = {name: error for name, error in introduced.items() if finer(name)}
            self._ours.judge_layers(own, may_be_copy, self._same_code, by_chance)

    @property
    def worth_a_closer_look(self) -> tuple[str, ...]:
        """The few layers of a copy that differ, where none of them is drift as it stands.

        A copy computes in one dtype, the reference's, and hands its states on in no other.
        """
        ours, candidate = self._ours, self._candidate
        dtypes = {candidate.dtype, *candidate.dtypes.values(), *candidate.stored.values()}
        if ours is None or dtypes != {self._reference.backend.dtype} or not ours.holds:
            return ()
        return ours.changed_layers

    def raise_layers(self, times: Mapping[str, float]) -> None:
        """Have layers of the candidate judged as so many times beyond what they may introduce."""
        if self._ours is not None:
            self._ours.raise_layers(times)

    def settle(self) -> None:
        """Wait for the comparisons that were begun on a device."""
        waiting, self._waiting = self._waiting, []
        for settle in waiting:
            settle()

    def meet(self, candidate: State) -> None:
        """Compare one candidate state with its partner; nothing of it is kept on the host.

        Where both live on a device, the comparison is only begun, and `settle` waits for it.
        """
        reference = self._reference.state(candidate.point.name)
        if reference is None:
            self._extra.append(self._alone(candidate, "extra"))
        else:
            self._judge(reference, candidate)

    def _judge(self, reference: State, candidate: State) -> None:
        point = reference.point
        if candidate.point.found != point.found:
            point = replace(point, found=candidate.point.found)
        if output := self._outputs.names.get(point.name):
            point = replace(point, output=output)
        dtypes, shape = Dtypes(reference.dtype, candidate.dtype), reference.shape
        if shape != candidate.shape:
            row = unlike(point, shape, candidate.shape, dtypes)
            by_chance = point.name in self._by_chance.shapes
            self._met[point.name] = unlike_by_chance(row) if by_chance else row
            return
        if is_exact(reference) or is_exact(candidate):
            free = self._by_chance.entries.get(point.name)
            probe, policy = self._reference.probe, self._policy
            self._met[point.name] = exact_row(point, reference, candidate, probe, policy, free)
            return
        given = reference, candidate
        reference, candidate, note = without_shared(*given, self._true(point.name))
        keep = self._reference.probe.keep(point.name, shape)
        tolerance = self._tolerance(*given)

        def settle(measured: Measured) -> None:
            if point.name == LOGITS and self._outputs.decides:
                r, c = (without_infinity(side.array) if note else side.array for side in given)
                self.decisions = decision_impact(r, c, keep, tolerance, measured.scale)
            if output := self._outputs.embeddings.get(point.name):
                ours = given[0].array
                room = tolerance.atol * measured.scale + tolerance.rtol * float(np.abs(ours).max())
                found = embedding(output, ours, given[1].array, keep, room)
                self._embeddings |= {point.name: found} if found is not None else {}
            self._met[point.name] = LayerDrift(
                point,
                0,
                shape,
                dtypes,
                judge(measured),
                measured.metrics,
                Allowed(tolerance.atol, tolerance.rtol, measured.scale, measured.exceeded),
                tokens=measured.tokens,
                note=note,
            )

        begun = begin(reference, candidate, tolerance, keep)
        if begun is None:
            settle(measure(reference.array, candidate.array, tolerance, keep))
        else:
            self._waiting.append(lambda: settle(begun()))

    def _tolerance(self, reference: State, candidate: State) -> Tolerance:
        """What an element may differ by: calibrated, or by a rule, or by the dtype table."""
        name = reference.point.name
        if self._ours is not None and not self._policy.has_rule(name):
            self._ours.meet(candidate)
            room = self._ours.element_room(name)
            if room is not None:
                return Tolerance(room)
        formats = (FORMATS[s.dtype] for s in (reference, candidate) if s.dtype in FORMATS)
        return self._policy.tolerance(name, *formats, *self._nominal[name])

    def _alone(self, state: State, verdict: Literal["missing", "extra"]) -> LayerDrift:
        row = alone(state.point, state.shape, state.dtype, verdict, self._allow)
        if self._same_attention or row.allowed or not is_attention_weights(state):
            return row
        return replace(row, allowed=True)

    def _true(self, point: str) -> State | None:
        return self._ours.calibration.truth.state(point) if self._ours is not None else None

    @property
    def embeddings(self) -> tuple[Embedding, ...]:
        """What became of the outputs that are embeddings, in the model's order."""
        points = self._outputs.embeddings
        return tuple(self._embeddings[point] for point in points if point in self._embeddings)

    def layers(self) -> tuple[LayerDrift, ...]:
        """One row per reference point, then the candidate's extra ones."""
        self.settle()
        rows = [
            self._with_sides(self._met[state.point.name])
            if state.point.name in self._met
            else self._alone(state, "missing")
            for state in self._reference
        ]
        rows = with_extra(rows, self._extra)
        return tuple(replace(row, index=index) for index, row in enumerate(rows))

    def _with_sides(self, row: LayerDrift) -> LayerDrift:
        """The row judged by how far each side is from the truth, where that is known."""
        name, ours, theirs = row.point.name, self._ours, self._theirs
        if row.metrics is None or ours is None or self._policy.has_rule(name):
            return row
        found = {side.side: side.judged(name) for side in (theirs, ours) if side is not None}
        sides: dict[str, Allowed] = {s: used for s, used in found.items() if used is not None}
        if "candidate" not in sides:
            return row
        worst = max(sides.values(), key=lambda used: used.needed)
        reference = theirs.errors.get(name) if theirs is not None else None
        state = self._reference.state(name)
        if reference is None and state is not None:
            reference = ours.calibration.error(state)
        truth = truth_errors(
            ours.calibration, name, reference or FAR, ours.error(name), ours.allowed(name)
        )
        verdict: PointVerdict = "ok" if worst.needed <= 1 else "drift"
        return replace(
            row,
            verdict=row.verdict if row.verdict == "nonfinite" else verdict,
            tolerance=worst,
            truth=truth,
            sides=sides,
        )


def judge(measured: Measured) -> PointVerdict:
    """NaN and Inf first; then an element beyond its allowance is drift."""
    if measured.metrics.nonfinite.candidate:
        return "nonfinite"
    return "drift" if measured.metrics.mismatched else "ok"


def coverage(layers: Iterable[LayerDrift]) -> Coverage:
    """What was compared, what was not, and which of that a pattern allowed."""
    rows = tuple(layers)

    def names(verdict: PointVerdict) -> tuple[str, ...]:
        return tuple(row.point.name for row in rows if row.verdict == verdict)

    return Coverage(
        points=sum(row.verdict != "extra" for row in rows),
        compared=sum(row.metrics is not None and row.metrics.total > 0 for row in rows),
        missing=names("missing"),
        extra=names("extra"),
        allowed=tuple(row.point.name for row in rows if row.allowed),
    )
