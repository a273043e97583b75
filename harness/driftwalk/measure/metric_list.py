"""All metrics: what is added up over two states, how each comes of it, how it is written.

A new one is a field of `Metrics` and an entry of `METRICS`; where it needs a sum of its own, also
that sum, here, in numpy (metrics.py) and fused (fused.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array, Float64
from ..jsonable import Size
from .halves import widened

Numbers = NDArray[np.int64]
"""Numbers of rows."""


@dataclass
class Sums:
    """Accumulators over rows; places are (number of the row, column)."""

    count: int = 0
    r_unit: float = 1.0
    c_unit: float = 1.0
    d_unit: float = 1.0
    """Reference, candidate and difference are summed in these units, see metrics.py."""
    abs_d: float = 0.0
    dd: float = 0.0
    rr: float = 0.0
    cc: float = 0.0
    rc: float = 0.0
    max_abs: float = -1.0
    max_rel: float = 0.0
    worst_at: tuple[int, int] | None = None
    exceeded: float = 0.0
    mismatched: int = 0
    bad_reference: int = 0
    bad_candidate: int = 0
    bad_reference_at: tuple[int, int] | None = None
    bad_candidate_at: tuple[int, int] | None = None
    ulp_max: float = math.nan
    ulp_p99: float = math.nan
    row_l2: list[Float64] = field(default_factory=list)


@dataclass(frozen=True)
class Pair:
    """Two states as rows, and the numbers of the rows that count."""

    r: Array
    c: Array
    rows: Numbers

    @property
    def widened(self) -> Pair:
        """Formats of 16 bits in float32, which holds all of their values; all in one piece."""
        return Pair(widened(self.r), widened(self.c), self.rows)


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
