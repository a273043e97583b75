"""The walk: hold each candidate state against the reference's, in order of execution.

States may arrive one by one (`Walk.meet`), so that a candidate's trace need never be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from ..adapter import Backend, BackendInfo
from ..dtypes import FORMATS, Format
from ..layer_drift import INTRODUCED, Allowed, Dtypes, LayerDrift, PointVerdict, TruthErrors
from ..measure.decisions import Decisions, decision_impact
from ..measure.metrics import Measured, measure
from ..measure.norms import Norms
from ..measure.reduction import begin
from ..result import Coverage
from ..states import State, Trace
from ..tolerance import Policy, Tolerance
from ..workers import in_threads
from .calibrate import PER_NORM, Calibration, K, truth_errors
from .exact import exact_row, is_exact
from .infinities import may_be_infinite, without_shared
from .replay import Replays, introduced_errors

_WORTH_A_THREAD = 1 << 17
"""Elements of a state that are compared in the time that Python takes for what is around it."""


class Walk:
    """Meets the candidate's states in any order; gives the layers in the reference's order."""

    def __init__(
        self,
        reference: Trace,
        candidate: BackendInfo,
        policy: Policy,
        allow_missing: Iterable[str] = (),
        calibration: Calibration | None = None,
    ) -> None:
        policy.check_rules(reference.names)
        self._reference = reference
        # A state may be stored wider than its backend computes (T5's blocks in fp16, TF32).
        self._nominal = (*_format(reference.backend.dtype), *_format(candidate.dtype))
        self._policy = policy
        self._allow = tuple(allow_missing)
        self._calibration = calibration
        self._theirs = _errors(reference, calibration)
        self._introduced: Mapping[str, Norms] = {}
        self._leeway = PER_NORM
        self._met: dict[str, LayerDrift] = {}
        self._waiting: list[Callable[[], None]] = []
        self._extra: list[LayerDrift] = []
        self.decisions: Decisions | None = None

    @property
    def reference_is_honest(self) -> bool:
        """Whether the reference itself is as close to the truth as the candidate must be."""
        known = self._calibration
        own = FORMATS.get(self._reference.backend.dtype)
        if known is None or own is None or own.roundoff > FORMATS[known.dtype].roundoff:
            return False
        return all(error.over(known.allowed(name))[0] <= 1 for name, error in self._theirs.items())

    def can_replay(self, reference: Backend) -> bool:
        """Whether the reference's own blocks can be run on the candidate's states to any use."""
        return self.reference_is_honest and isinstance(reference, Replays)

    def meet_all(self, candidate: Trace, reference: Backend) -> None:
        """Meet every state, and hold each layer against the reference's own block as well."""
        self.meet_trace(candidate)
        fits = all(row.verdict != "shape" for row in self._met.values())
        if fits and self.can_replay(reference):
            self.hold_against(introduced_errors(reference, candidate))

    def meet_trace(self, candidate: Trace) -> None:
        """Meet every state of a trace, several at a time."""
        known = [s for s in candidate if self._reference.state(s.point.name) is not None]
        in_threads(self.meet, known, State.elements, _WORTH_A_THREAD)
        for state in candidate:
            if self._reference.state(state.point.name) is None:
                self.meet(state)
        self.settle()

    def hold_against(self, introduced: Mapping[str, Norms]) -> None:
        """Judge each layer by what it made of its own input too, not only by what came out.

        Total error hides a small fault under the noise of all layers before it; the difference
        that one layer makes, given the same input, does not.
        """
        self._introduced = introduced
        if self._calibration is not None:
            self._leeway = self._calibration.leeway(introduced)

    def settle(self) -> None:
        """Wait for the comparisons that were begun on a device."""
        waiting, self._waiting = self._waiting, []
        for settle in waiting:
            settle()

    def meet(self, candidate: State) -> None:
        """Compare one candidate state with its partner; nothing of it is kept on the host.

        Where both live on a device, the comparison is only begun, and `settle` waits for it.
        """
        name = candidate.point.name
        reference = self._reference.state(name)
        if reference is None:
            self._extra.append(
                LayerDrift(
                    candidate.point,
                    0,
                    candidate.shape,
                    Dtypes(None, candidate.dtype),
                    "extra",
                    note="the candidate has this point, the reference does not",
                    allowed=self._is_allowed(name),
                )
            )
            return
        self._judge(reference, candidate)

    def _judge(self, reference: State, candidate: State) -> None:
        point = reference.point
        if candidate.point.found != point.found:
            point = replace(point, found=candidate.point.found)
        dtypes, shape = Dtypes(reference.dtype, candidate.dtype), reference.shape
        if shape != candidate.shape:
            note = f"reference {list(shape)}, candidate {list(candidate.shape)}"
            self._met[point.name] = LayerDrift(point, 0, shape, dtypes, "shape", note=note)
            return
        if is_exact(reference) or is_exact(candidate):
            row = exact_row(point, reference, candidate, self._reference.probe, self._policy)
            self._met[point.name] = row
            return
        note = ""
        if may_be_infinite(reference):
            reference, candidate, note = without_shared(reference, candidate)
        keep = self._reference.probe.keep(point.name, shape)
        calibrated = self._calibrated(reference, candidate)
        if calibrated is not None:
            tolerance = Tolerance(calibrated[0].atol)
        else:
            formats = (*_format(reference.dtype), *_format(candidate.dtype), *self._nominal)
            tolerance = self._policy.tolerance(point.name, *formats)

        def settle(measured: Measured) -> None:
            if point.name == "logits" and self._decides():
                r, c = reference.array, candidate.array
                self.decisions = decision_impact(r, c, keep, tolerance, measured.scale)
            self._met[point.name] = LayerDrift(
                point,
                0,
                shape,
                dtypes,
                judge(measured, calibrated[0] if calibrated else None),
                measured.metrics,
                calibrated[0] if calibrated else _allowed(tolerance, measured),
                calibrated[1] if calibrated else None,
                tokens=measured.tokens,
                note=note,
            )

        begun = begin(reference, candidate, tolerance, keep)
        if begun is None:
            settle(measure(reference.array, candidate.array, tolerance, keep))
        else:
            self._waiting.append(lambda: settle(begun()))

    def _calibrated(self, reference: State, candidate: State) -> tuple[Allowed, TruthErrors] | None:
        """Both sides against the truth, where the policy is calibrated and the truth has this."""
        name, known = reference.point.name, self._calibration
        if known is None or self._policy.has_rule(name):
            return None
        ours, theirs = known.error(candidate), self._theirs.get(name)
        if ours is None or theirs is None:
            return None
        allowed = known.allowed(name)
        if not math.isfinite(allowed.max_abs):
            return None  # plain PyTorch itself overflows here: no measure of honest noise
        exceeded, norm = ours.over(allowed)
        room = Allowed(allowed.max_abs, 0.0, 1.0, exceeded, K, norm)
        return room, truth_errors(known, name, theirs, ours)

    def _decides(self) -> bool:
        """Whether the last point is a choice; a pooled embedding has no argmax worth telling."""
        outputs, logits = self._reference.outputs, self._reference.state("logits")
        if not outputs or "logits" in outputs or "output" in outputs:
            return True
        scores = [name for name in outputs if name.endswith("_logits")]  # of a start, of a class
        return logits is not None and any(np.array_equal(outputs[n], logits.array) for n in scores)

    def layers(self) -> tuple[LayerDrift, ...]:
        """One row per reference point, then the candidate's extra ones."""
        self.settle()
        rows = [self._met.get(s.point.name) or self._missing(s) for s in self._reference]
        rows = [self._with_introduced(row) for row in rows]
        rows += self._extra
        return tuple(replace(row, index=index) for index, row in enumerate(rows))

    def _with_introduced(self, row: LayerDrift) -> LayerDrift:
        """The row, or the worse one that the layer's own doing makes it."""
        known, own = self._calibration, self._introduced.get(row.point.name)
        if known is None or own is None or row.tolerance is None or row.tolerance.k is None:
            return row
        exceeded, norm = own.over(known.allowed_own(row.point.name, self._leeway))
        if exceeded <= row.tolerance.needed:
            return row
        room = replace(row.tolerance, needed=exceeded, norm=f"{INTRODUCED}{norm}")
        verdict = "drift" if row.verdict == "ok" and exceeded > 1 else row.verdict
        return replace(row, tolerance=room, verdict=verdict)

    def _missing(self, reference: State) -> LayerDrift:
        return LayerDrift(
            reference.point,
            0,
            reference.shape,
            Dtypes(reference.dtype, None),
            "missing",
            note="the candidate gave no state here",
            allowed=self._is_allowed(reference.point.name),
        )

    def _is_allowed(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self._allow)


def judge(measured: Measured, calibrated: Allowed | None = None) -> PointVerdict:
    """NaN and Inf first; then an element, or a calibrated norm, beyond its allowance is drift."""
    if measured.metrics.nonfinite.candidate:
        return "nonfinite"
    if calibrated is not None:
        return "ok" if calibrated.needed <= 1 else "drift"
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


def _errors(reference: Trace, calibration: Calibration | None) -> dict[str, Norms]:
    """How far the reference is from the truth, point by point."""
    if calibration is None:
        return {}
    found = in_threads(calibration.error, reference.states, State.elements)
    names = reference.names
    return {name: error for name, error in zip(names, found, strict=True) if error is not None}


def _format(name: str) -> tuple[Format, ...]:
    """The format of that name, if driftwalk knows one."""
    return (FORMATS[name],) if name in FORMATS else ()


def _allowed(tolerance: Tolerance, measured: Measured) -> Allowed:
    return Allowed(tolerance.atol, tolerance.rtol, measured.scale, measured.exceeded)
