"""All metrics: what each is called, how it comes of the sums, how it is written.

A new one is a field of `Metrics` and an entry of `METRICS`; where it needs a sum of its own, also
that sum, in numpy (metrics.py) and fused (fused.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..jsonable import Size
from .sums import Sums


@dataclass(frozen=True)
class Worst:
    """One element: where, and what stood on both sides."""

    index: tuple[int, ...]
    reference: float
    candidate: float


@dataclass(frozen=True)
class Nonfinite:
    """How many elements are NaN or infinite on each side."""

    reference: int = 0
    candidate: int = 0


@dataclass(frozen=True)
class Metrics:
    """The difference at one point. All but `nonfinite` and `worst` speak of finite pairs only."""

    max_abs: Size
    max_rel: Size
    mean_abs: Size
    rmse: Size
    rel_l2: Size
    cosine: float
    snr_db: float
    ulp_max: Size
    ulp_p99: Size
    mismatched: int
    total: int
    nonfinite: Nonfinite
    worst: Worst | None


@dataclass(frozen=True)
class Metric:
    """One number of `Metrics`."""

    name: str
    label: str
    formula: Callable[[Sums], float]
    written: Literal["number", "cosine", "dB", "ULP"] = "number"
    no_difference: float = 0.0
    """What it is where both sides are the same."""

    @property
    def bigger_is_worse(self) -> bool:
        """Whether it grows with the difference, so that a bound may be set on it."""
        return self.no_difference == 0


def _mean_abs(sums: Sums) -> float:
    return sums.abs_d / sums.count * sums.d_unit if sums.count else 0.0


def _rmse(sums: Sums) -> float:
    return math.sqrt(sums.dd / sums.count) * sums.d_unit if sums.count else 0.0


def _rel_l2(sums: Sums) -> float:
    if sums.rr > 0:
        return math.sqrt(sums.dd) / math.sqrt(sums.rr) * (sums.d_unit / sums.r_unit)
    return math.inf if sums.dd > 0 else 0.0


def _cosine(sums: Sums) -> float:
    norms = math.sqrt(sums.rr) * math.sqrt(sums.cc)
    if norms > 0:
        return max(-1.0, min(1.0, sums.rc / norms))
    return 1.0 if sums.rr == sums.cc else 0.0


def _snr_db(sums: Sums) -> float:
    if sums.dd == 0:
        return math.inf
    if sums.rr == 0:
        return -math.inf
    units = math.log10(sums.r_unit) - math.log10(sums.d_unit)
    return 20 * (math.log10(math.sqrt(sums.rr) / math.sqrt(sums.dd)) + units)


METRICS = (
    Metric("max_abs", "max abs", lambda sums: max(sums.max_abs, 0.0)),
    Metric("max_rel", "max rel", lambda sums: sums.max_rel),
    Metric("mean_abs", "mean abs", _mean_abs),
    Metric("rmse", "RMSE", _rmse),
    Metric("rel_l2", "rel L2", _rel_l2),
    Metric("cosine", "cosine", _cosine, "cosine", no_difference=1.0),
    Metric("snr_db", "SNR", _snr_db, "dB", no_difference=math.inf),
    Metric("ulp_max", "ULP", lambda sums: sums.ulp_max, "ULP"),
    Metric("ulp_p99", "ULP, 99 %", lambda sums: sums.ulp_p99, "ULP"),
)
"""In the order in which they are shown."""
