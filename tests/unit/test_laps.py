"""What a row of timings says, and above all what it does not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftwalk.tasks.bench.timing_stats import compare_laps, summarise, word_of
from driftwalk.tasks.constants import FEWEST_TIMED_PAIRS, TIMING_MARGIN

seconds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(seconds)
def test_a_summary_is_ordered(samples):
    found = summarise(samples)
    assert found.least <= found.q1 <= found.median <= found.q3 <= max(samples)
    assert found.runs == len(samples)


@pytest.mark.parametrize(("runs", "known"), [(19, ()), (20, ("p90",)), (40, ("p90", "p95"))])
def test_percentiles_only_where_the_runs_support_them(runs, known):
    found = summarise([1.0 + i / 100 for i in range(runs)])
    assert tuple(name for name in ("p90", "p95") if getattr(found, name) is not None) == known


def test_noise_is_named():
    assert not summarise([1.0, 1.01, 1.02, 1.03]).noisy
    assert summarise([1.0, 1.2, 1.4, 1.6]).noisy


@given(st.floats(0.01, 100), st.floats(0.01, 100))
def test_words_follow_the_interval(a, b):
    low, high = min(a, b), max(a, b)
    word = word_of(low, high)
    assert (word == "slower") == (low > 1 + TIMING_MARGIN)
    assert (word == "faster") == (high < 1 - TIMING_MARGIN)
    assert word != "same" or (low >= 1 - TIMING_MARGIN and high <= 1 + TIMING_MARGIN)


def test_few_runs_decide_nothing():
    for pairs in range(FEWEST_TIMED_PAIRS):
        assert compare_laps([1.0] * pairs, [3.0] * pairs).word == "undecided"
    assert compare_laps([1.0] * 12, [3.0] * 12).word == "slower"
    assert compare_laps([0.0] * 12, [3.0] * 12).word == "undecided"
    assert math.isnan(compare_laps([], []).value)


def noisy_pair(rng, factor, runs=25):
    """Two interleaved rows on a machine with slow spells and outliers."""
    spell = np.exp(np.cumsum(rng.normal(0, 0.03, runs)))
    rows = [spell * np.exp(rng.normal(0, 0.04, runs)) for _ in range(2)]
    for row in rows:
        row[rng.integers(0, runs, 2)] *= 2.5
    return rows[0], rows[1] * factor


def test_equal_backends_are_never_told_apart():
    rng = np.random.default_rng(0)
    words = [compare_laps(*noisy_pair(rng, 1.0)).word for _ in range(300)]
    assert set(words) <= {"same", "undecided"}


def test_thirty_per_cent_are_seen():
    rng = np.random.default_rng(1)
    assert all(compare_laps(*noisy_pair(rng, 1.3)).word == "slower" for _ in range(300))
    assert all(compare_laps(*noisy_pair(rng, 1 / 1.3)).word == "faster" for _ in range(300))


def test_the_interval_holds_the_median_as_often_as_it_promises():
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(400):
        a = np.exp(rng.normal(0, 0.1, 20))
        found = compare_laps(np.ones(20), a)
        missed += not found.low <= 1 <= found.high
    assert missed <= 3


def test_slow_spells_cancel():
    """Both rows triple half-way: each alone is noise, their ratio is not."""
    rng = np.random.default_rng(3)
    spell = np.array([1.0] * 12 + [3.0] * 12)
    a, b = (spell * rng.normal(1, 0.005, 24) for _ in range(2))
    assert summarise(a).noisy
    assert compare_laps(a, b).word == "same"
