"""Two states as rows, and what is added up over them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array
from .halves import widened

Float64 = NDArray[np.float64]
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
