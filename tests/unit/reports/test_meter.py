"""Bars of the allowance used: a little beyond and far beyond do not look alike."""

from __future__ import annotations

import math
from itertools import pairwise

from driftwalk_reports.meter import meter


def test_a_little_beyond_and_far_beyond_are_told_apart() -> None:
    bars = meter([0.12, 1.1, 55_500.0])
    assert bars.at(1.1) < 35
    assert bars.at(55_500.0) > 95
    assert bars.at(0.12) < bars.limit < bars.at(1.1)


def test_equal_ratios_are_equal_lengths() -> None:
    bars = meter([1000.0])
    steps = [bars.at(10.0**decade) for decade in range(-2, 4)]
    gaps = [b - a for a, b in pairwise(steps[1:])]
    assert max(gaps) - min(gaps) < 0.2
    assert steps[-1] == 100
    assert bars.limit == steps[2]


def test_ends_of_the_scale() -> None:
    bars = meter([0.3, None])
    assert bars.words.startswith("Bars are on a log scale, from 1 % to 10 \u00d7 the allowance")
    assert bars.at(0.0) == 0
    assert bars.at(1e-9) == 1, "what is not zero can be seen"
    assert bars.at(math.inf) == 100
    assert bars.at(math.nan) == 0
    assert meter([math.inf]).at(math.inf) == 100
    assert meter([]).limit == meter([None, 0.0]).limit


def test_a_scale_reaches_no_farther_than_can_be_drawn() -> None:
    assert meter([1e300]).at(1.1) > 5
