"""Judging pairs of tensors deep inside two graphs, where no truth says how much noise is honest.

The dtype table gives room in units of a tensor's own RMS. Inside a graph that is not enough: the
mean of numbers that cancel is nothing but rounding, and two honest runs need not share a digit of
it. So each tensor has a *scale*, at least its RMS: a sum is as exact as its largest term, and what
is made of an inexact tensor is no more exact than that.

    scale(sum)    =  max( RMS, scale of every term )
    scale(other)  =  RMS * max( scale / RMS of every input )
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

from ..dtypes import FORMATS, Array, Format, dtype_name, format_of
from ..judge.walk import judge
from ..layer_drift import Allowed, Dtypes, LayerDrift, PointVerdict
from ..measure.metrics import measure
from ..states import Point, Probe
from ..tolerance import Policy, Tolerance
from ..workers import in_threads


class Made(Protocol):
    """What a judge must know of a tensor beside its values."""

    @property
    def point(self) -> Point: ...
    @property
    def tensor(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def is_sum(self) -> bool: ...
    @property
    def remark(self) -> str: ...


@dataclass(frozen=True)
class _Size:
    """How large a tensor is, and how large what it was made of was."""

    rms: float
    scale: float

    @property
    def ratio(self) -> float:
        return self.scale / self.rms if self.rms > 0 else 1.0


@dataclass(frozen=True, eq=False)
class _Ready:
    """A pair of tensors as it is compared."""

    made: Made
    reference: Array
    candidate: Array
    alike: int
    rms: float

    @classmethod
    def of(cls, made: Made, reference: Array, candidate: Array) -> _Ready:
        alike = 0
        if reference.shape == candidate.shape:
            reference, candidate, alike = without_shared(reference, candidate)
        return cls(made, reference, candidate, alike, _rms(reference))


class NodeJudge:
    """Judges the tensors of two graphs one by one, in topological order."""

    def __init__(self, policy: Policy, probe: Probe, dtypes: Iterable[str]) -> None:
        self._policy = policy
        self._probe = probe
        self._nominal: tuple[Format, ...] = tuple(FORMATS[d] for d in dtypes if d in FORMATS)
        self._sizes: dict[str, _Size] = {}

    def inner(self, pairs: Sequence[tuple[Made, Array, Array]]) -> list[LayerDrift]:
        """Tensors inside: what is infinite or NaN in both alike is no fault there (masks)."""
        ready = in_threads(lambda pair: _Ready.of(*pair), pairs)
        sized = [(one, self._size(one.made, one.rms).scale) for one in ready]  # in order
        return in_threads(lambda pair: self._inner(*pair), sized)

    def _inner(self, one: _Ready, scale: float) -> LayerDrift:
        row = self._row(one.made.point, one.reference, one.candidate, scale, inner=True)
        words = [one.made.remark] if one.made.remark else []
        if one.alike:
            words.append(f"{one.alike} elements are infinite or NaN on both sides alike")
        words += [row.note] if row.note else []
        return replace(row, note="; ".join(words), tokens=None if row.ok else row.tokens)

    def output(self, name: str, reference: Array, candidate: Array) -> LayerDrift:
        """An output of the graph; whole numbers, flags and texts must be the same."""
        return self._row(Point(name, "output"), reference, candidate, None)

    def _size(self, made: Made, rms: float) -> _Size:
        known = [self._sizes[name] for name in made.inputs if name in self._sizes]
        if made.is_sum:
            scale = max([rms, *(size.scale for size in known)])
        else:
            scale = rms * max([1.0, *(size.ratio for size in known)])
        self._sizes[made.tensor] = _Size(rms, scale)
        return self._sizes[made.tensor]

    def _row(
        self,
        point: Point,
        reference: Array,
        candidate: Array,
        scale: float | None,
        inner: bool = False,
    ) -> LayerDrift:
        shape, formats = reference.shape, (format_of(reference), format_of(candidate))
        sides = zip(formats, (reference, candidate), strict=True)
        dtypes = Dtypes(*(known.name if known else side.dtype.name for known, side in sides))
        if shape != candidate.shape:
            note = f"reference {list(shape)}, candidate {list(candidate.shape)}"
            return LayerDrift(point, 0, shape, dtypes, "shape", note=note)
        exact = None in formats
        tolerance = self._tolerance(point, [f for f in formats if f is not None], scale, exact)
        keep = self._probe.keep(point.name, shape) if len(shape) == 3 or not inner else None
        measured = measure(reference, candidate, tolerance, keep)
        verdict, note = judge(measured), ""
        if exact and verdict == "ok" and not np.array_equal(reference, candidate):
            verdict = "drift"  # whole numbers that a float64 cannot tell apart
            note = "whole numbers differ beyond what a float64 holds"
        room = Allowed(tolerance.atol, tolerance.rtol, measured.scale, measured.exceeded)
        return LayerDrift(
            point,
            0,
            shape,
            dtypes,
            verdict,
            measured.metrics,
            room,
            tokens=measured.tokens,
            note=note,
        )

    def _tolerance(
        self, point: Point, own: Sequence[Format], scale: float | None, exact: bool
    ) -> Tolerance:
        if exact and not self._policy.has_rule(point.name):
            return Tolerance(0.0)
        tolerance = self._policy.tolerance(point.name, *own, *self._nominal)
        if scale is None or tolerance.scale != "rms" or not math.isfinite(scale):
            return tolerance
        return Tolerance(tolerance.atol * scale, tolerance.rtol)


def without_shared(reference: Array, candidate: Array) -> tuple[Array, Array, int]:
    """Both arrays with 0 where both have the same infinity, or both NaN; and how often."""
    if reference.dtype.kind != "f" or candidate.dtype.kind != "f":
        return reference, candidate, 0
    bad = ~np.isfinite(reference)
    if not bad.any():
        return reference, candidate, 0
    with np.errstate(all="ignore"):
        same = bad & (
            (np.isnan(reference) & np.isnan(candidate))
            | (np.isinf(reference) & (reference == candidate))
        )
    zero = np.zeros((), dtype=reference.dtype)
    return (
        np.where(same, zero, reference),
        np.where(same, zero.astype(candidate.dtype), candidate),
        int(np.count_nonzero(same)),
    )


def _rms(array: Array) -> float:
    """Of the finite elements."""
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        square = float(np.vdot(flat, flat)) if flat.dtype == np.float32 else math.inf
        if not math.isfinite(square):  # too large for float32, or not finite
            wide = flat.astype(np.float64)
            wide = wide[np.isfinite(wide)]
            square = float(np.vdot(wide, wide))
    return math.sqrt(square / flat.size) if flat.size else 0.0


def unmatched(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], allow: Iterable[str]
) -> list[LayerDrift]:
    """Rows for outputs that only one side has."""
    globs = tuple(allow)

    def row(
        name: str, array: Array, kinds: Dtypes, verdict: PointVerdict, whose: str
    ) -> LayerDrift:
        allowed = any(fnmatchcase(name, glob) for glob in globs)
        note = f"the {whose} has no such output"
        point = Point(name, "output")
        return LayerDrift(point, 0, array.shape, kinds, verdict, note=note, allowed=allowed)

    gone = {n: a for n, a in reference.items() if n not in candidate}
    new = {n: a for n, a in candidate.items() if n not in reference}
    return [
        *(row(n, a, Dtypes(dtype_name(a), None), "missing", "candidate") for n, a in gone.items()),
        *(row(n, a, Dtypes(None, dtype_name(a)), "extra", "reference") for n, a in new.items()),
    ]
