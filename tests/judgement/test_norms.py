"""The four norms against straightforward numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from driftwalk.measure.norms import Norms, distance, norms_of, ratio

FLOATS = st.floats(-1e3, 1e3, width=32)
SHAPES = hnp.array_shapes(min_dims=3, max_dims=4, max_side=5)
STATES = hnp.arrays(np.float32, SHAPES, elements=FLOATS)


@settings(max_examples=60, deadline=None)
@given(STATES, st.integers(0, 2**32 - 1))
def test_each_norm_is_what_it_says(a, seed):
    b = a + np.random.default_rng(seed).standard_normal(a.shape).astype(np.float32)
    d = a.astype(np.float64) - b.astype(np.float64)
    found = distance(a, b)
    flat = d.reshape(-1, d.shape[-1])
    assert found.l2 == pytest.approx(np.sqrt((d**2).sum()), rel=1e-12)
    assert found.max_abs == np.abs(d).max()
    assert found.channel == pytest.approx(np.sqrt((flat**2).mean(0)).max(), rel=1e-12)
    exact = np.linalg.svd(flat, compute_uv=False)[0]
    assert 0.9 * exact <= found.spectral <= exact * (1 + 1e-5)


def test_padding_does_not_count():
    a, b = np.ones((2, 3, 4)), np.zeros((2, 3, 4))
    a[1, 2] = np.nan
    keep = np.array([[1, 1, 1], [1, 1, 0]], bool)
    assert distance(a, b, keep).l2 == pytest.approx(math.sqrt(20))
    assert distance(a, b).l2 == math.inf, "NaN that counts is never small"


def test_padding_of_states_with_inner_axes():
    a = np.arange(2 * 3 * 2 * 4, dtype=np.float64).reshape(2, 3, 2, 4)
    keep = np.array([[1, 0, 1], [0, 1, 1]], bool)
    expected = np.sqrt((a[keep] ** 2).sum())
    assert distance(a, np.zeros_like(a), keep).l2 == pytest.approx(expected)


def test_a_pattern_of_rank_one_hides_from_l2_and_not_from_the_largest_singular_value():
    rng = np.random.default_rng(0)
    noise, other = rng.standard_normal((2, 4, 64, 256))
    fault = np.outer(rng.standard_normal(256), rng.standard_normal(256)).reshape(4, 64, 256)
    zero = np.zeros_like(noise)
    honest = distance(other, zero)
    faulty = distance(noise + 0.8 * fault, zero)
    assert faulty.l2 < 1.5 * honest.l2
    assert faulty.spectral > 5 * honest.spectral


def test_a_bad_channel_hides_from_l2_and_not_from_the_worst_channel():
    rng = np.random.default_rng(0)
    noise, other = rng.standard_normal((2, 4, 64, 256))
    noise[..., 7] *= 10
    zero = np.zeros_like(noise)
    assert distance(noise, zero).l2 < 1.5 * distance(other, zero).l2
    assert distance(noise, zero).channel > 8 * distance(other, zero).channel


def test_the_worst_ratio_is_named():
    assert Norms(1, 9, 2, 0).over(Norms(1, 3, 1, 1)) == (3, "max_abs")
    assert Norms(0, 0, 0, 0).over(Norms(0, 0, 0, 0))[0] == 0
    assert Norms(0, 1, 0, 0).over(Norms(0, 0, 0, 0))[0] == math.inf
    assert ratio(math.nan, 1) == math.inf


def test_the_scale_of_a_state_bounds_all_its_norms():
    a = np.random.default_rng(0).standard_normal((2, 5, 8))
    size, own = norms_of(a), distance(a, np.zeros_like(a))
    assert size.spectral >= own.spectral
    assert (size.l2, size.max_abs) == (own.l2, own.max_abs)
