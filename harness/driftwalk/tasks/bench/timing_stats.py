"""What a row of timings says: its middle, its spread, and whether one row is slower than another.

    pairs      r_i = candidate_i / reference_i, runs that stood next to each other in time
    ratio      the median of r_i
    interval   what that median is, with 99.9 % confidence: a bootstrap over the pairs
    slower     the interval lies above 1 + TIMING_MARGIN        faster   below 1 - TIMING_MARGIN
    same       it lies within                            undecided   anything else

A slow spell of the machine hits neighbours alike and cancels in r_i. Nothing is said that the
interval does not say: with few or noisy runs the word is `undecided`, never `faster`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..constants import (
    FEWEST_TIMED_PAIRS,
    NOISY_SPREAD,
    PERCENTILE_SAMPLES,
    TIMING_CONFIDENCE,
    TIMING_MARGIN,
    TIMING_RESAMPLES,
)

Word = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True)
class Summary:
    """One row of timings, in seconds."""

    runs: int
    median: float
    q1: float
    q3: float
    least: float
    p90: float | None
    p95: float | None
    """None where there are too few runs to know."""

    @property
    def spread(self) -> float:
        """The interquartile range as a fraction of the median."""
        return (self.q3 - self.q1) / self.median if self.median > 0 else 0.0

    @property
    def noisy(self) -> bool:
        return self.spread > NOISY_SPREAD


@dataclass(frozen=True)
class Ratio:
    """A candidate's time over the reference's, and how sure that is."""

    value: float
    low: float
    high: float
    word: Word

    def above(self, most: float) -> bool | None:
        """Whether it is more than `most`; None where the interval leaves that open, or is NaN."""
        if self.low > most:
            return True
        return False if self.high <= most else None


def summarise(samples: Sequence[float]) -> Summary:
    """Median, quartiles, and the percentiles that the number of runs supports."""
    if not len(samples):
        raise ValueError("no samples")
    row = np.asarray(samples, np.float64)
    q1, median, q3 = (float(value) for value in np.percentile(row, (25, 50, 75)))
    tails = {
        name: float(np.percentile(row, float(name[1:]))) if len(row) >= needed else None
        for name, needed in PERCENTILE_SAMPLES.items()
    }
    return Summary(len(row), median, q1, q3, float(row.min()), **tails)


def compare_laps(
    reference: Sequence[float], candidate: Sequence[float], margin: float = TIMING_MARGIN
) -> Ratio:
    """Two interleaved rows, run by run; what is left over on one side is not used."""
    pairs = min(len(reference), len(candidate))
    a = np.asarray(reference[:pairs], np.float64)
    b = np.asarray(candidate[:pairs], np.float64)
    if not pairs or not (a > 0).all():
        return Ratio(math.nan, math.nan, math.nan, "undecided")
    ratios = b / a
    value = float(np.median(ratios))
    if pairs < FEWEST_TIMED_PAIRS:
        return Ratio(value, 0.0, math.inf, "undecided")
    low, high = _interval(ratios)
    return Ratio(value, low, high, word_of(low, high, margin))


def word_of(low: float, high: float, margin: float = TIMING_MARGIN) -> Word:
    """What an interval says."""
    if low > 1 + margin:
        return "slower"
    if high < 1 - margin:
        return "faster"
    return "same" if low >= 1 - margin and high <= 1 + margin else "undecided"


def _interval(ratios: NDArray[np.float64]) -> tuple[float, float]:
    """Of the median, by resampling; never narrower than what order statistics guarantee."""
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(ratios), (TIMING_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    tail = 100 * (1 - TIMING_CONFIDENCE) / 2
    low, high = np.percentile(medians, (tail, 100 - tail))
    least, most = _sign_bounds(np.sort(ratios))
    return float(min(low, least)), float(max(high, most))


def _sign_bounds(ordered: NDArray[np.float64]) -> tuple[float, float]:
    """The distribution-free interval of a median: the order statistics that a coin allows."""
    count, beyond, chance = len(ordered), 0, 0.5 ** len(ordered)
    total = chance
    while total <= (1 - TIMING_CONFIDENCE) / 2 and beyond < count // 2:
        beyond += 1
        chance *= (count - beyond + 1) / beyond
        total += chance
    if beyond == 0:  # too few for this confidence: all that was seen
        return float(ordered[0]), float(ordered[-1])
    return float(ordered[beyond - 1]), float(ordered[count - beyond])
