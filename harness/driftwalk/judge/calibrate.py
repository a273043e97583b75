"""The calibrated policy: a candidate may be at most K times as wrong as plain eager PyTorch is.

    error        e_c(n) = |c_n - x_n|        e_y(n) = |y_n - x_n|
    drift at n   <=>   e_c(n) > K * e_y(n) + floor_n        in any norm
    floor_n      FLOOR units of roundoff of the candidate's dtype, times the size of x_n

x is the truth (float64), c the candidate, y the yardstick: eager PyTorch at the candidate's dtype.
No magic number about the model is asked for: the model and the probe say how much noise is honest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from ..adapter import Backend
from ..dtypes import FORMATS
from ..errors import BackendError
from ..layer_drift import Closer, TruthErrors
from ..measure.norms import NORM_NAMES, ZERO, Norms, distance, norms_of, ratio
from ..states import Probe, State, Trace
from .exact import float_states
from .replay import introduced_errors

K = 4.0
"""How many times the yardstick's error, in L2, an honest candidate may have."""

PER_NORM = Norms(l2=1.0, max_abs=2.0, channel=1.5, spectral=3.0)
"""Times K, norm by norm: another honest implementation differs from PyTorch on a CPU most in the
systematic patterns of its approximations, then in its extremes, least in L2. Chosen so that every
clean pair of docs/calibration.md and docs/cuda.md stays below three quarters of its limit."""

SAME = Norms(l2=0.5, max_abs=0.5, channel=0.5, spectral=0.5)
"""Times K, for a candidate that in most layers computes bit by bit what the reference does: where
it does not, two honest results are at most two yardsticks apart."""

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

    def allowed(self, point: str) -> Norms:
        """What the total error at a point may be: K times the yardstick's, plus the floor."""
        return self._allowed(point, self.yardstick, PER_NORM)

    def allowed_own(self, point: str, leeway: Norms = PER_NORM) -> Norms:
        """What a layer may introduce by itself: K times what the yardstick's does."""
        return self._allowed(point, self.introduced, leeway)

    def _allowed(self, point: str, errors: Mapping[str, Norms], leeway: Norms) -> Norms:
        floor = self.scale.get(point, ZERO).scaled(FLOOR * FORMATS[self.dtype].roundoff)
        if leeway != SAME:  # another implementation may round the same way everywhere
            floor = replace(floor, spectral=floor.l2)
        return errors.get(point, ZERO).scaled(K).times(leeway).plus(floor)

    def leeway(self, introduced: Mapping[str, Norms]) -> Norms:
        """How much of PER_NORM a candidate needs, by the layer in the middle of all its layers.

        Another implementation is a little off in every layer alike; a fault is off in one. A
        candidate that computes as the yardstick does is held to K in every norm, and one whose
        middle layer has no error at all to half of it.
        """
        own = {
            name: [
                ratio(getattr(error, name), getattr(self.introduced[point], name))
                for point, error in introduced.items()
                if 0 < getattr(self.introduced.get(point, ZERO), name) < math.inf
            ]
            for name in NORM_NAMES
        }
        middle = {name: median(found) if found else 1.0 for name, found in own.items()}
        if not any(middle.values()):
            return SAME
        return Norms(**{n: max(1.0, min(getattr(PER_NORM, n), middle[n])) for n in NORM_NAMES})

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
    allowed = calibration.allowed(point)
    return TruthErrors(
        reference=reference.l2,
        candidate=candidate.l2,
        yardstick=yardstick.l2,
        scale=size.l2,
        # In units in which the limit is K, whatever the norm, and with the floor counted.
        ratio=K * candidate.over(allowed)[0],
        closer=closer(reference.l2, candidate.l2),
        norms={
            "reference": reference,
            "candidate": candidate,
            "yardstick": yardstick,
            "allowed": allowed,
        },
    )


def closer(reference: float, candidate: float) -> Closer:
    """Which side is nearer to the truth, if the difference means anything."""
    if candidate * TIE < reference:
        return "candidate"
    return "reference" if reference * TIE < candidate else "tie"


def calibrate(truth: Backend, yardstick: Backend, probe: Probe) -> Calibration:
    """Run the truth, the yardstick, and the truth once more on the yardstick's own states."""
    exact = float_states(truth.trace(probe))
    keep = {s.point.name: probe.keep(s.point.name, s.array.shape) for s in exact}
    scale = {s.point.name: norms_of(s.array, keep[s.point.name]) for s in exact}
    for name, size in scale.items():
        if not math.isfinite(size.l2):
            raise BackendError(f"the truth itself is not finite at {name}.")
    honest = float_states(yardstick.trace(probe), like=exact)
    errors = {
        s.point.name: distance(s.array, exact[s.point.name], keep[s.point.name])
        for s in honest
        if exact.state(s.point.name) is not None
    }
    return Calibration(
        truth=exact,
        yardstick=errors,
        introduced=introduced_errors(truth, honest),
        scale=scale,
        dtype=yardstick.info.dtype,
    )
