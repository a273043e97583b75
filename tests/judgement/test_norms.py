"""The norms against straightforward numpy; no token, and no channel, blinds them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from driftwalk.judge.honest import honest
from driftwalk.measure import norms, spectral
from driftwalk.measure.norms import (
    FAR,
    Norms,
    Weights,
    distance,
    norms_of,
    ratio,
    row_sizes,
)

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
    assert found.spread == pytest.approx(found.l2, rel=1e-12)
    assert found.peak == found.max_abs
    assert found.channel_middle == pytest.approx(np.median(np.sqrt((flat**2).mean(0))), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(STATES, st.integers(0, 2**32 - 1))
def test_each_weighed_norm_is_that_of_the_weighed_difference(a, seed):
    rng = np.random.default_rng(seed)
    b = a + rng.standard_normal(a.shape).astype(np.float32)
    flat = (a.astype(np.float64) - b.astype(np.float64)).reshape(-1, a.shape[-1])
    tokens, channels = rng.uniform(0.01, 100, len(flat)), rng.uniform(0.01, 100, flat.shape[1])
    found = distance(a, b, weights=Weights(tokens, channels))
    weighed, plain = flat * tokens[:, None] * channels, distance(a, b)
    assert (found.l2, found.max_abs) == (plain.l2, plain.max_abs)
    rows = np.sort(np.linalg.norm(weighed, axis=1))
    assert found.spread == pytest.approx(np.linalg.norm(weighed), rel=1e-12)
    assert found.peak == pytest.approx(np.abs(weighed).max(), rel=1e-12)
    assert found.token_worst == pytest.approx(rows[-1], rel=1e-12)
    assert found.token_middle == pytest.approx(np.median(rows), rel=1e-12)
    assert found.token_upper == pytest.approx(rows[math.ceil(0.95 * (len(rows) - 1))], rel=1e-12)
    rms = np.sqrt((weighed**2).mean(0))
    assert found.channel == pytest.approx(rms.max(), rel=1e-12)
    assert found.channel_middle == pytest.approx(np.median(rms), rel=1e-12)


def test_the_middle_token_is_the_median_of_the_ratios_to_honest_noise():
    """r_t = |c_t - x_t| / |y_t - x_t|, whatever the sizes of the tokens are."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((1, 41, 64))
    sizes = 10.0 ** rng.uniform(-3, 4, (1, 41, 1))
    yardstick = truth + 1e-3 * sizes * rng.standard_normal(truth.shape)
    found = truth + 2e-3 * sizes * rng.standard_normal(truth.shape)
    known = honest(yardstick, truth, None, 2.0**-24)
    c = distance(found, truth, weights=known.weights)
    channels = known.weights.channels
    ratios = row_sizes(found, truth, None, channels) / row_sizes(yardstick, truth, None, channels)
    assert c.token_middle / known.noise.token_middle == pytest.approx(np.median(ratios), rel=1e-9)
    assert c.token_worst / known.noise.token_worst == pytest.approx(ratios.max(), rel=1e-9)
    assert 1.5 < np.median(ratios) < 2.5


@pytest.mark.parametrize("where", [(0, slice(0, 1), 7), (0, slice(None), 7)], ids=["token", "all"])
def test_an_element_of_four_orders_more_hides_a_fault_from_plain_l2_only(where):
    """Attention sinks, and channels that are huge in every token: all else is 3 x too wrong."""
    rng = np.random.default_rng(0)
    truth, noise, other = rng.standard_normal((3, 1, 40, 64))
    truth[where] = 2e4
    size = np.full((1, 40, 64), 1e-3)
    size[where] = 20.0
    yardstick, faulty = truth + size * noise, truth + 3 * size * other
    faulty[where] = truth[where] + 20.0 * other[where]
    known = honest(yardstick, truth, None, 2.0**-24)
    c = distance(faulty, truth, weights=known.weights)
    assert c.l2 < 2 * known.noise.l2
    assert c.token_middle > 2.4 * known.noise.token_middle
    assert c.spread > 2.4 * known.noise.spread


def test_the_median_is_that_of_tokens_that_are_more_than_zeros():
    a, b = np.zeros((1, 6, 2)), np.zeros((1, 6, 2))
    b[0, :, 0] = [0, 0, 0, 0, 3, 5]
    alive = np.array([False, False, False, True, True, True])
    assert distance(a, b, weights=Weights(np.ones(6), np.ones(2))).token_middle == 0
    assert distance(a, b, weights=Weights(np.ones(6), np.ones(2), alive)).token_middle == 3


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
    assert Norms(1, 9, 6, 0).over(Norms(1, 3, 2, 1)) == (3, "channel")
    assert Norms(9, 9).over(Norms(1, 1))[0] == 0, "plain sizes are reported, not judged"
    assert Norms(0, 1, 1).over(Norms(0, 0))[0] == math.inf
    assert ratio(math.nan, 1) == math.inf


def test_the_scale_of_a_state_bounds_all_its_norms():
    a = np.random.default_rng(0).standard_normal((2, 5, 8))
    size, own = norms_of(a), distance(a, np.zeros_like(a))
    assert size.spectral >= own.spectral
    assert (size.l2, size.max_abs) == (own.l2, own.max_abs)


SIZES = (5e-324, 1e-320, 1e-300, 1e-60, 1e-46, 1e-44, 1e-39, 1e-37, 1e-12, 1.0, 1e12, 1e37, 1e39)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (2, 9, 64), (1, 40, 8)], ids=str)
@pytest.mark.parametrize("size", [*SIZES, 1e150])
def test_the_strongest_pattern_of_numbers_of_any_size(size, shape, compiled, monkeypatch):
    """At least what it is, at most L2; and never an error."""
    if not compiled:
        monkeypatch.setattr(norms, "fast_norms", lambda *_: None)
        monkeypatch.setattr(norms, "fast_difference", lambda *_: None)
        monkeypatch.setattr(spectral, "fast_products", lambda *_: None)
    rng = np.random.default_rng(0)
    patterns = {
        "noise": rng.standard_normal(shape),
        "one element": np.where(np.arange(np.prod(shape)).reshape(shape) == 0, 1.0, 0.0),
        "rank one": rng.standard_normal((*shape[:-1], 1)) * rng.standard_normal(shape[-1]),
        "graded": rng.standard_normal(shape) * 10.0 ** -np.arange(shape[-1]),
    }
    for kind, pattern in patterns.items():
        state = pattern * size
        found = distance(state, np.zeros_like(state))
        if size < 1e-150:  # squares are 0 there, and so is every sum of them
            assert found.spectral == found.spread == 0.0, kind
            continue
        scale = np.abs(state).max()
        whole = (state / scale).reshape(-1, shape[-1])
        exact = float(np.linalg.svd(whole, compute_uv=False)[0]) * scale
        assert 0.85 * exact <= found.spectral * (1 + 1e-6), kind
        assert found.spectral <= max(found.spread, exact) * (1 + 1e-5), kind


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_what_is_not_a_number_is_far(broken):
    state = np.zeros((1, 9, 16))
    state[0, 3, 2] = broken
    assert distance(state, np.zeros_like(state)) == FAR


def test_an_iteration_that_does_not_end_is_bounded(monkeypatch):
    """LAPACK may give up; what is said then is never less than the norm, nor more than L2."""
    rng = np.random.default_rng(0)
    state = rng.standard_normal((1, 30, 64))
    right = distance(state, np.zeros_like(state))

    def fails(*_):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigvalsh", fails)
    bound = distance(state, np.zeros_like(state))
    assert right.spectral <= bound.spectral <= right.spread
