"""The error of a quantised candidate, split: what its format costs, and what its kernel adds."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..dtypes import Array, Float64
from ..formats import Declared, FormatCost, FormatFindings, Misstored
from ..layer_drift import Culprit
from ..measure.decisions import Decisions, decision_impact
from ..measure.norms import BLOCK
from ..names import LOGITS
from ..result import Report
from ..states import Probe, State, Trace
from ..tolerance import Tolerance
from .calibrate import Calibration
from .sides import JudgedSide

_EXACT = Tolerance(0.0, 0.0)
"""Two float64 runs: what flips between them was no tie."""


class FormatSplit:
    """Meets the candidate's states, each beside the truth and the declared model's truth."""

    def __init__(self, truth: Trace, declared: Trace, says: Declared) -> None:
        self._truth, self._declared, self._says = truth, declared, says
        self._layers: dict[str, FormatCost] = {}

    @classmethod
    def between(
        cls, reference: JudgedSide | None, candidate: Calibration | None, says: Declared | None
    ) -> FormatSplit | None:
        """None where the candidate declares nothing, or one of the two has no truth."""
        if reference is None or candidate is None or says is None:
            return None
        return cls(reference.calibration.truth, candidate.truth, says)

    def also(self, found: tuple[str, Misstored] | None) -> FormatSplit:
        """The same with what is wrong at a point, unless a weight before it explains it."""
        if found is None:
            return self
        (name, wrong), order = found, self._truth.names
        if any(order.index(other) <= order.index(name) for other in self._misstored):
            return self
        says = replace(self._says, wrong={**self._says.wrong, name: wrong})
        return FormatSplit(self._truth, self._declared, says)

    def meet(self, state: State) -> None:
        name = state.point.name
        both = self._truth.state(name), self._declared.state(name)
        arrays = [one.array for one in both if one is not None]
        if len(arrays) == 2 and all(one.shape == state.array.shape for one in arrays):
            keep = self._truth.probe.keep(name, state.array.shape)
            self._layers[name] = split(state.array, arrays[1], arrays[0], keep)

    @cached_property
    def _misstored(self) -> dict[str, str]:
        """By point: the worst of its modules whose weights are no rounding of the model's.

        What lies in no point's module shows at the end at the latest.
        """
        found: dict[str, str] = {}
        wrong = self._says.wrong
        points = [state.point for state in self._truth if state.point.module]
        for path in sorted(wrong, key=lambda path: wrong[path].beyond):
            inside = [p for p in points if path == p.module or path.startswith(f"{p.module}.")]
            inside = [p for p in points if p.name == path] or inside
            deepest = max(inside, key=lambda point: len(point.module), default=None)
            found[self._truth.names[-1] if deepest is None else deepest.name] = path
        return found

    @property
    def misstored(self) -> dict[str, float]:
        """Where such modules show, and how many times they are off what a rounding may be."""
        found: dict[str, float] = {}
        for name, path in self._misstored.items():
            shown = self._shown_at(name)
            found[shown] = max(found.get(shown, 0.0), self._says.wrong[path].beyond)
        return found

    def _shown_at(self, name: str) -> str:
        """The point, or where the candidate has no state there, the next one, or the last."""
        order = self._truth.names
        met = [other for other in order if other in self._layers]
        behind = (other for other in met if order.index(other) >= order.index(name))
        return next(behind, met[-1] if met else name)

    def accused(self, report: Report) -> Report:
        """The report with the first such point as its root cause, unless that lies before it.

        Between roundings that tip over, the error of one weight may be nowhere to be seen.
        """
        order = {name: place for place, name in enumerate(self._truth.names)}
        first = min(self._misstored, key=order.__getitem__, default=None)
        if first is None or order.get(report.cause or "", math.inf) < order[first]:
            return report
        path = self._misstored[first]
        wrong = self._says.wrong[path]
        culprit = report.culprit
        if culprit is None or report.cause != first or not culprit.module.startswith(path):
            culprit = Culprit(path, wrong.beyond, None, None, f"{first}: {wrong.sentence}")
        return replace(report, cause=first, cause_among=(), culprit=culprit)

    def findings(self, decides: bool) -> FormatFindings:
        """All that was met, in the model's order; `decides`: whether the model's logits do."""
        order = [name for name in self._truth.names if name in self._layers]
        both = self._truth.state(LOGITS), self._declared.state(LOGITS)
        decisions = None
        if decides and both[0] is not None and both[1] is not None:
            decisions = decided_otherwise(both[0].array, both[1].array, self._truth.probe)
        return FormatFindings(
            stored=self._says.stored,
            layers={name: self._layers[name] for name in order},
            decisions=decisions,
            wrong=self._says.wrong,
            own_way=self._says.own_way,
            in_float=self._says.in_float,
        )


def decided_otherwise(true: Array, declared: Array, probe: Probe) -> Decisions | None:
    """What a format alone does to the model's choices, from its logits; None: it makes none."""
    return decision_impact(true, declared, probe.keep(LOGITS, true.shape), _EXACT, 1.0)


def split(candidate: Array, declared: Array, true: Array, keep: Array | None) -> FormatCost:
    """The two parts of candidate - true, over the positions that count."""
    rows = [_counted(array, keep) for array in (candidate, declared, true)]
    sums = np.zeros(4)
    step = max(1, BLOCK // max(1, rows[0].shape[1]))
    for start in range(0, len(rows[0]), step):
        c, d, x = (one[start : start + step].astype(np.float64) for one in rows)
        with np.errstate(invalid="ignore", over="ignore"):
            of_format, of_kernel = _apart(d, x), _apart(c, d)
            pairs = (
                (of_format, of_format),
                (of_kernel, of_kernel),
                (of_format, of_kernel),
                (x, x),
            )
            sums += [float(np.vdot(a, b)) for a, b in pairs]
    cost, added, both, size = sums.tolist()
    across = math.sqrt(cost) * math.sqrt(added)
    cosine = min(1.0, max(-1.0, both / across)) if 0 < across < math.inf else 0.0
    return FormatCost(math.sqrt(cost), math.sqrt(added), cosine, math.sqrt(size))


def _apart(a: Float64, b: Float64) -> Float64:
    """a - b; nothing where both are the same infinity."""
    return np.where(a == b, 0.0, a - b)


def _counted(array: Array, keep: Array | None) -> Array:
    width = array.shape[-1] if array.ndim else 1
    if keep is not None:
        return array[keep].reshape(-1, width)
    return array.reshape(-1, width)
