"""The calibrated policy: a candidate may be at most K times as wrong as plain eager PyTorch is.

    error        e_c(n) = |c_n - x_n|        e_y(n) = |y_n - x_n|
    drift at n   <=>   e_c(n) > K * e_y(n) + floor_n        in any of the three norms
    floor_n      FLOOR units of roundoff of the candidate's dtype, times the size of x_n

x is the truth (float64), c the candidate, y the yardstick: eager PyTorch at the candidate's dtype.
No magic number about the model is asked for: the model and the probe say how much noise is honest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .adapter import Backend
from .dtypes import FORMATS
from .norms import ZERO, Norms, distance, norms_of
from .replay import introduced_errors
from .result import Closer, TruthErrors
from .states import Probe, State, Trace

K = 4.0
"""How many times the yardstick's error an honest candidate may have (docs/calibration.md)."""

FLOOR = 2.0
"""Roundoffs every element may be off where the yardstick is exact (lookups, copies)."""

TIE = 1.5
"""Two sides whose errors differ by less than this factor are equally close to the truth."""


def yardstick_spec(dtype: str) -> str:
    """Plain eager PyTorch at a dtype; formats this CPU may lack are emulated."""
    return f"torch:cpu:{dtype}" if dtype in ("fp64", "fp32") else f"emulated:{dtype}"


@dataclass(frozen=True, eq=False)
class Calibration:
    """The truth's states, and how wrong the yardstick is at each of them."""

    truth: Trace
    yardstick: Mapping[str, Norms]
    introduced: Mapping[str, Norms]
    """The part of the yardstick's error that each layer made itself."""
    scale: Mapping[str, Norms]
    dtype: str

    def allowed(self, point: str, yardstick: Mapping[str, Norms] | None = None) -> Norms:
        """K times the yardstick's error plus the floor."""
        errors = self.yardstick if yardstick is None else yardstick
        floor = self.scale.get(point, ZERO).scaled(FLOOR * FORMATS[self.dtype].roundoff)
        return errors.get(point, ZERO).scaled(K).plus(floor)

    def error(self, state: State) -> Norms | None:
        """How far a state is from the truth; None where the truth has no such point or shape."""
        true = self.truth.state(state.point.name)
        if true is None or true.array.shape != state.array.shape:
            return None
        keep = self.truth.probe.keep(state.point.name, true.array.shape)
        return distance(state.array, true.array, keep)


def truth_errors(
    calibration: Calibration, point: str, reference: Norms, candidate: Norms
) -> TruthErrors:
    """What the report says about both sides at a point."""
    yardstick = calibration.yardstick.get(point, ZERO)
    size = calibration.scale.get(point, ZERO)
    floor = size.scaled(FLOOR * FORMATS[calibration.dtype].roundoff)
    return TruthErrors(
        reference=reference.l2,
        candidate=candidate.l2,
        yardstick=yardstick.l2,
        scale=size.l2,
        # An exact yardstick still has the floor: the ratio says how near the limit of K it is.
        ratio=candidate.over(yardstick.plus(floor.scaled(1 / K)))[0],
        closer=closer(reference.l2, candidate.l2),
        norms={"reference": reference, "candidate": candidate, "yardstick": yardstick},
    )


def closer(reference: float, candidate: float) -> Closer:
    """Which side is nearer to the truth, if the difference means anything."""
    if candidate * TIE < reference:
        return "candidate"
    return "reference" if reference * TIE < candidate else "tie"


def calibrate(truth: Backend, yardstick: Backend, probe: Probe) -> Calibration:
    """Run the truth, the yardstick, and the truth once more on the yardstick's own states."""
    exact = truth.trace(probe)
    honest = yardstick.trace(probe)
    keep = {s.point.name: probe.keep(s.point.name, s.array.shape) for s in exact}
    errors = {
        s.point.name: distance(s.array, exact[s.point.name], keep[s.point.name])
        for s in honest
        if exact.state(s.point.name) is not None
    }
    return Calibration(
        truth=exact,
        yardstick=errors,
        introduced=introduced_errors(truth, honest),
        scale={s.point.name: norms_of(s.array, keep[s.point.name]) for s in exact},
        dtype=yardstick.info.dtype,
    )
