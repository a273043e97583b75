"""The walk: hold each candidate state against the reference's, in order of execution.

States may arrive one by one (`Walk.meet`), so that a candidate's trace need never be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from .adapter import BackendInfo
from .decisions import Decisions, decision_impact
from .dtypes import FORMATS, Format
from .metrics import Measured, measure
from .result import Allowed, Coverage, Dtypes, LayerDrift, PointVerdict
from .states import State, Trace
from .tolerance import Policy, Tolerance


class Walk:
    """Meets the candidate's states in any order; gives the layers in the reference's order."""

    def __init__(
        self,
        reference: Trace,
        candidate: BackendInfo,
        policy: Policy,
        allow_missing: Iterable[str] = (),
    ) -> None:
        policy.check_rules(reference.names)
        self._reference = reference
        # A state may be stored wider than its backend computes (T5's blocks in fp16, TF32).
        self._nominal = (*_format(reference.backend.dtype), *_format(candidate.dtype))
        self._policy = policy
        self._allow = tuple(allow_missing)
        self._met: dict[str, LayerDrift] = {}
        self._extra: list[LayerDrift] = []
        self.decisions: Decisions | None = None

    def meet(self, candidate: State) -> None:
        """Compare one candidate state with its partner; nothing of it is kept."""
        name = candidate.point.name
        reference = self._reference.state(name)
        if reference is None:
            self._extra.append(
                LayerDrift(
                    candidate.point,
                    0,
                    candidate.array.shape,
                    Dtypes(None, candidate.dtype),
                    "extra",
                    note="the candidate has this point, the reference does not",
                    allowed=self._is_allowed(name),
                )
            )
            return
        self._met[name] = self._judge(reference, candidate)

    def _judge(self, reference: State, candidate: State) -> LayerDrift:
        point, r, c = reference.point, reference.array, candidate.array
        dtypes = Dtypes(reference.dtype, candidate.dtype)
        if r.shape != c.shape:
            note = f"reference {list(r.shape)}, candidate {list(c.shape)}"
            return LayerDrift(point, 0, r.shape, dtypes, "shape", note=note)
        formats = (*_format(reference.dtype), *_format(candidate.dtype), *self._nominal)
        tolerance = self._policy.tolerance(point.name, *formats)
        keep = self._reference.probe.keep(point.name, r.shape)
        measured = measure(r, c, tolerance, keep)
        if point.name == "logits":
            self.decisions = decision_impact(r, c, keep, tolerance, measured.scale)
        return LayerDrift(
            point,
            0,
            r.shape,
            dtypes,
            judge(measured),
            measured.metrics,
            _allowed(tolerance, measured),
            tokens=measured.tokens,
        )

    def layers(self) -> tuple[LayerDrift, ...]:
        """One row per reference point, then the candidate's extra ones."""
        rows = [self._met.get(s.point.name) or self._missing(s) for s in self._reference]
        rows += self._extra
        return tuple(replace(row, index=index) for index, row in enumerate(rows))

    def _missing(self, reference: State) -> LayerDrift:
        return LayerDrift(
            reference.point,
            0,
            reference.array.shape,
            Dtypes(reference.dtype, None),
            "missing",
            note="the candidate gave no state here",
            allowed=self._is_allowed(reference.point.name),
        )

    def _is_allowed(self, name: str) -> bool:
        return any(fnmatchcase(name, glob) for glob in self._allow)


def judge(measured: Measured) -> PointVerdict:
    """NaN and Inf first; then one element beyond its allowance is drift."""
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


def _format(name: str) -> tuple[Format, ...]:
    """The format of that name, if driftwalk knows one."""
    return (FORMATS[name],) if name in FORMATS else ()


def _allowed(tolerance: Tolerance, measured: Measured) -> Allowed:
    return Allowed(tolerance.atol, tolerance.rtol, measured.scale, measured.exceeded)
