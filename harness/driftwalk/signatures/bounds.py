"""What two signatures say of the difference d of the states they were made from: bounds.

Projections are linear: those of d are the differences of those of the states. With k independent
weights of mean 0 and variance 1, the mean square S of the k projections of d is unbiased for
|d|^2. For Gaussian weights, S / |d|^2 is chi-squared over k, and Chernoff's bound is

    P( S <= x |d|^2 )  <=  (x e^(1-x))^(k/2)   for x < 1,    the same for >= and x > 1.

Our weights are sums of eight fair signs. They obey the upper half as they stand (no moment of a sum
of signs is above that of a Gaussian), and the lower half up to a factor of 1.05: for |t| < pi / 2,
cos t <= e^(-t^2/2), so that E e^(-h y^2) is at most that of a Gaussian, plus the chance that a
Gaussian is beyond 3.6 sigma. So, with SIGNATURE_CHANCE for either side and each state,

    S / high  <=  |d|^2  <=  S / low        low < 1 < high:  (x e^(1-x))^(k/2) = SIGNATURE_CHANCE

This holds for differences that were not made with the seed in hand. Beside it stand facts that
need no chance: samples that differ, extremes and quantiles that moved (no order statistic moves by
more than the largest difference), and the rounding to `unit` before elements were projected.
"""

from __future__ import annotations

import math
from functools import cache

from ..judge.constants import SIGNATURE_CHANCE
from ..layer_drift import Bounds
from ..measure.norms import ratio
from ..tolerance import Tolerance
from .make import COUNT, StateSignature

EQUAL = Bounds(True, *[0.0] * 8)
UNEQUAL = Bounds(False, math.nan, *(1.0, math.inf) * 2, math.inf, math.inf, chance=0.0)
"""Whole numbers whose hashes differ: at least one of them by at least 1."""

Samples = tuple[tuple[float, float], ...]
"""Elements at the same places, of the reference and of the candidate."""


@cache
def interval(count: int = COUNT, chance: float = SIGNATURE_CHANCE) -> tuple[float, float]:
    """The two x at which (x e^(1-x))^(count/2) is `chance`: below 1, and above it."""
    wanted = 2 * math.log(1 / chance) / count

    def excess(x: float) -> float:
        return x - 1 - math.log(x) - wanted

    def root(near: float, far: float) -> float:
        for _ in range(200):
            middle = (near + far) / 2
            near, far = (middle, far) if excess(middle) < 0 else (near, middle)
        return far

    return root(1.0, 1e-300), root(1.0, 2 + 2 * wanted + 2 * math.sqrt(wanted))


def difference(
    reference: StateSignature, candidate: StateSignature, same_seed: bool
) -> tuple[Bounds, Samples]:
    """Bounds on what two states of equal shape differ by, over the elements that count.

    Those on what is needed are still to come: they depend on a tolerance.
    """
    equal = (reference.sha256, reference.dtype) == (candidate.sha256, candidate.dtype)
    pairs = zip(reference.samples, candidate.samples, strict=False) if same_seed else ()
    samples = tuple((r, c) for r, c in pairs if r is not None and c is not None)
    if equal:
        return EQUAL, samples
    moved = max(_moved(reference, candidate), *(abs(r - c) for r, c in samples), 0.0)
    root = math.sqrt(reference.counted)
    low, high, estimate = moved, reference.l2 + candidate.l2, math.nan
    if same_seed:
        apart = zip(reference.projections, candidate.projections, strict=True)
        estimate = math.hypot(*(r - c for r, c in apart)) / math.sqrt(COUNT)
        rounding = (reference.unit + candidate.unit) / 2 * root
        least, most = interval()
        low = max(low, estimate / math.sqrt(most) - rounding)
        high = min(high, estimate / math.sqrt(least) + rounding)
    high = max(high, low)
    most_moved = max(moved, low / root), high
    return Bounds(False, estimate, low, high, *most_moved, 0.0, 0.0, SIGNATURE_CHANCE), samples


def _moved(reference: StateSignature, candidate: StateSignature) -> float:
    """How far an order statistic moved: no farther than the largest difference."""
    ours, theirs = reference.moments, candidate.moments
    pairs = [(ours.min, theirs.min), (ours.max, theirs.max)]
    if len(reference.quantiles) == len(candidate.quantiles):
        pairs += zip(reference.quantiles, candidate.quantiles, strict=True)
    return max(abs(r - c) for r, c in pairs)


def needed(
    reference: StateSignature,
    bounds: Bounds,
    samples: Samples,
    tolerance: Tolerance,
    scale: float,
) -> tuple[float, float]:
    """Bounds on the largest |difference| / allowance; above 1 is drift.

    From below: samples; the largest difference over the largest allowance; and, as
    |d|^2 <= needed^2 * (sum of all allowances squared), L2 over the L2 of the allowances.
    From above: no element is off by more than L2, and none is allowed less than the least.
    """
    if bounds.exact:
        return 0.0, 0.0
    moments = reference.moments
    room, slope = tolerance.atol * scale, tolerance.rtol
    largest = max(abs(moments.min), abs(moments.max))
    squares = room * room + 2 * room * slope * moments.mean_abs + (slope * moments.rms) ** 2
    low = max(
        ratio(bounds.max_abs_low, room + slope * largest),
        ratio(bounds.l2_low, math.sqrt(squares * reference.counted)),
        *(ratio(abs(r - c), room + slope * abs(r)) for r, c in samples),
        0.0,
    )
    return low, max(low, ratio(bounds.max_abs_high, room + slope * moments.min_abs))


def needed_l2(reference: StateSignature, bounds: Bounds, limit: float) -> tuple[float, float]:
    """Bounds on |difference| / (limit * |reference|), both in L2."""
    room = limit * reference.l2
    return ratio(bounds.l2_low, room), ratio(bounds.l2_high, room)
