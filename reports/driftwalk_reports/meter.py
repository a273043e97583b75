"""Bars of the share of an allowance that was used, on one log scale for all points of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .numbers import used

LEAST, MOST = -2, 18
"""Decades: 1 % of an allowance at the left end, and no scale reaches farther than this."""


@dataclass(frozen=True)
class Meter:
    """A scale from 1 % of the allowance to a whole decade beyond it."""

    high: int
    """The decade at the right end; 0 is the allowance itself."""

    def at(self, share: float) -> float:
        """Where a share stands, in percent of the bar; whatever is not zero can be seen."""
        if not share > 0:
            return 0.0
        decades = min(math.log10(share), float(self.high)) if math.isfinite(share) else self.high
        return round(max(1.0, 100 * (decades - LEAST) / (self.high - LEAST)), 1)

    @property
    def limit(self) -> float:
        """Where the whole allowance stands."""
        return self.at(1.0)

    @property
    def words(self) -> str:
        ends = f"from {used(10.0**LEAST)} to {used(10.0**self.high)}"
        return (
            f"Bars are on a log scale, {ends} the allowance; the line across stands at all of it."
        )


def meter(shares: Iterable[float | None]) -> Meter:
    """The scale that holds them all; at least a decade beyond the allowance."""
    known = [share for share in shares if share is not None and 0 < share < math.inf]
    high = math.ceil(math.log10(max(known))) if known else 1
    return Meter(min(MOST, max(1, high)))
