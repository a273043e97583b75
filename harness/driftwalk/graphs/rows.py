"""Judging pairs of tensors deep inside two graphs: by the truth where there is one, and by a table.

The dtype table gives room in units of a tensor's own RMS. Inside a graph that is not enough: the
mean of numbers that cancel is nothing but rounding, and two honest runs need not share a digit of
it. So each tensor has a *scale*, at least its RMS: a sum is as exact as its largest term, and what
is made of an inexact tensor is no more exact than that.

    scale(sum)    =  max( RMS, scale of every term )
    scale(other)  =  RMS * max( scale / RMS of every input )

A row beyond the table may still be the honest rounding of nodes before it, passed on. It is excused
only where no node that the tensor is computed from, nor its own, introduced more than honest
arithmetic explains (own_doing.py): a sigmoid near zero, what cancels, whole numbers on the boundary
between two steps and all that is made of them. One node that introduced more, and everything after
it stays as it was judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import FORMATS, Array, Format, dtype_name, format_of
from ..judge.constants import BOUND_ROUNDING
from ..judge.depth import alone
from ..judge.walk import judge
from ..layer_drift import Allowed, Dtypes, LayerDrift, Side
from ..measure.metrics import Measured, measure
from ..states import Point, Probe
from ..tolerance import Policy, Tolerance
from ..workers import in_threads
from .by_truth import Witnesses, by_truth
from .own_doing import OwnDoing, Replayed, own_doing, rms

if TYPE_CHECKING:
    from driftwalk_backends.onnx.pairs.plan import TensorPair

INHERITED = (
    "beyond the table, and inherited: given its inputs, the reference makes the same of them"
)


class NodeJudge:
    """Judges the tensors of two graphs one by one, in topological order."""

    def __init__(self, policy: Policy, probe: Probe, dtypes: tuple[str, str]) -> None:
        self._policy = policy
        self._probe = probe
        self._dtypes: Mapping[Side, str] = {"reference": dtypes[0], "candidate": dtypes[1]}
        self._nominal: tuple[Format, ...] = tuple(FORMATS[d] for d in dtypes if d in FORMATS)
        self.beyond: dict[str, LayerDrift] = {}
        """Rows that the table does not allow, by name, whatever the truth says of them."""
        self._sizes: dict[str, tuple[float, float]] = {}
        """The RMS and the scale of each tensor that was met."""

    def inner(
        self,
        pairs: Sequence[tuple[TensorPair, Array, Array]],
        witnesses: Mapping[str, Witnesses] | None = None,
    ) -> list[LayerDrift]:
        """Tensors inside: what is infinite or NaN in both alike is no fault there (masks)."""

        def cleaned(one: tuple[TensorPair, Array, Array]) -> tuple[Array, Array, int, float]:
            reference, candidate, alike = without_shared(one[1], one[2])
            return reference, candidate, alike, rms(reference)

        ready, seen = in_threads(cleaned, pairs), witnesses or {}
        scaled = [  # in order: a scale is made of those before it
            (pair, reference, candidate, alike, self._scale(pair, size), seen.get(pair.tensor))
            for (pair, _, _), (reference, candidate, alike, size) in zip(pairs, ready, strict=True)
        ]
        return in_threads(lambda one: self._inner(*one), scaled)

    def _inner(
        self,
        pair: TensorPair,
        reference: Array,
        candidate: Array,
        alike: int,
        scale: float,
        seen: Witnesses | None,
    ) -> LayerDrift:
        row = self._row(pair.point, reference, candidate, scale, inner=True)
        row = self._witnessed(row, reference, candidate, seen, scale)
        shared = f"{alike} elements are infinite or NaN on both sides alike" if alike else ""
        note = "; ".join(filter(None, (pair.remark, shared, row.note)))
        return replace(row, note=note, tokens=None if row.ok else row.tokens)

    def output(
        self, name: str, reference: Array, candidate: Array, seen: Witnesses | None = None
    ) -> LayerDrift:
        """An output of the graph; whole numbers, flags and texts must be the same."""
        row = self._row(Point(name, "output"), reference, candidate, None)
        return self._witnessed(row, reference, candidate, seen, 0.0)

    def _witnessed(
        self,
        row: LayerDrift,
        reference: Array,
        candidate: Array,
        seen: Witnesses | None,
        scale: float,
    ) -> LayerDrift:
        """The row by the truth, where there is one and no rule was named for the point."""
        if self._policy.has_rule(row.point.name):
            return row
        if row.verdict == "drift":
            self.beyond[row.point.name] = row
        if seen is None or reference.dtype.kind != "f" or candidate.dtype.kind != "f":
            return row
        sides: dict[Side, Array] = {"reference": reference, "candidate": candidate}
        return by_truth(row, sides, seen, scale if math.isfinite(scale) else 0.0, self._dtypes)

    def _scale(self, pair: TensorPair, size: float) -> float:
        taken = [self._sizes[name] for name in pair.inputs if name in self._sizes]
        if pair.is_sum:
            scale = max([size, *(scale for _, scale in taken)])
        else:
            scale = size * max([1.0, *(scale / own for own, scale in taken if own > 0)])
        self._sizes[pair.tensor] = size, scale
        return scale

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
        return LayerDrift(
            point,
            0,
            shape,
            dtypes,
            verdict,
            measured.metrics,
            Allowed(tolerance.atol, tolerance.rtol, measured.scale, measured.exceeded),
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
    comparable = reference.shape == candidate.shape
    if not comparable or reference.dtype.kind != "f" or candidate.dtype.kind != "f":
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


def unmatched(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], allow: Sequence[str]
) -> list[LayerDrift]:
    """Rows for outputs that only one side has."""
    rows = [
        alone(Point(name, "output"), array.shape, dtype_name(array), "missing", allow)
        for name, array in reference.items()
        if name not in candidate
    ]
    return rows + [
        alone(Point(name, "output"), array.shape, dtype_name(array), "extra", allow)
        for name, array in candidate.items()
        if name not in reference
    ]


@dataclass(frozen=True)
class Account:
    """The rows after all, the nodes that introduced too much, in order, and a sentence."""

    rows: tuple[LayerDrift, ...]
    guilty: tuple[OwnDoing, ...] = ()
    note: str = ""


def account(
    rows: Sequence[LayerDrift],
    tensors: Mapping[str, str],
    replayed: Iterable[Replayed],
    depends: Callable[[str, str], bool],
    dtypes: Sequence[str],
) -> Account:
    """Excuse what was inherited; `tensors` are those of rows that drifted, by the row's name.

    `depends` says whether one tensor, the first, is computed from another.
    """
    found: dict[str, OwnDoing] = {}
    again: dict[str, Measured] = {}
    wanted = set(tensors.values())
    for one in replayed:
        own = own_doing(one, dtypes)
        found[one.tensor] = own
        if one.tensor in wanted and not own.guilty:
            room = Tolerance((own.inherited + own.allowed) * BOUND_ROUNDING)
            mine, theirs, _ = without_shared(one.reference, one.candidate)
            again[one.tensor] = measure(mine, theirs, room)
    guilty = tuple(own for own in found.values() if own.guilty)

    def excused(row: LayerDrift) -> LayerDrift:
        tensor = tensors.get(row.point.name)
        if tensor is None or row.metrics is None:
            return row
        if any(own.tensor == tensor or depends(tensor, own.tensor) for own in guilty):
            return row
        if tensor not in found:
            # It could not be replayed, and may itself be at fault: what is made of it tells.
            after = [own for own in found.values() if depends(own.tensor, tensor)]
            if not after or any(own.guilty for own in after):
                return row
        measured = again.get(tensor)
        if measured is None:
            metrics, exceeded = replace(row.metrics, mismatched=0), 1.0
            most = row.metrics.max_abs
        else:
            metrics, exceeded = measured.metrics, measured.exceeded
            most = found[tensor].inherited + found[tensor].allowed
        note = "; ".join(filter(None, (row.note, INHERITED)))
        room = Allowed(most, 0.0, 1.0, exceeded)
        return replace(row, verdict="ok", metrics=metrics, tolerance=room, note=note)

    after = tuple(excused(row) for row in rows)
    changed = sum(a.verdict != b.verdict for a, b in zip(after, rows, strict=True))
    return Account(after, guilty, _excuse(changed, found) if changed else "")


def _excuse(changed: int, found: Mapping[str, OwnDoing]) -> str:
    most = max((own.needed for own in found.values() if not own.guilty), default=0.0)
    words = (
        f"{changed} tensors differ by more than the dtype table allows, by what they inherit: each "
        f"of {len(found)} nodes (or what was fused into one) was given the candidate's own inputs "
        f"in the reference, and none that they come from differs by more than {most:.2g} of what "
        "honest arithmetic explains."
    )
    tipped = {name: own.other_steps for name, own in found.items() if own.other_steps}
    if tipped:
        first = next(iter(tipped))
        words += (
            f" Whole numbers in {len(tipped)} tensors are not the reference's own, in {first!r} "
            f"first ({tipped[first]}): they lay at the boundary between two steps, or come of such."
        )
    return words
