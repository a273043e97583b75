"""Compiled norms are numpy's: differences exactly, singular values but for the last digits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import FORMATS, Array
from driftwalk.measure import fused, fused_norms, norms, spectral
from driftwalk.measure.norms import FAR, NORM_NAMES, ZERO, Norms, Weights, distance
from unit.material import seeds

pytestmark = pytest.mark.skipif(
    fused.library() is None, reason="the package was not built with a C compiler"
)
KINDS = ("fp64", "fp32", "fp16", "bf16")


def generally(
    a: Array, b: Array | None, keep: Array | None = None, weights: Weights | None = None
) -> Norms:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "fast_norms", lambda *_: None)
        patch.setattr(norms, "fast_difference", lambda *_: None)
        patch.setattr(spectral, "fast_products", lambda *_: None)
        return distance(a, b, keep, weights)


def assert_alike(fast: Norms, slow: Norms) -> None:
    assert fast.max_abs == slow.max_abs
    assert fast.l2 == pytest.approx(slow.l2, rel=1e-12)
    for name in NORM_NAMES:
        rel = 1e-3 if name == "spectral" else 1e-12
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), rel=rel), name


@settings(max_examples=80, deadline=None)
@given(
    rng=seeds(),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40)),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    masked=st.booleans(),
)
def test_any_difference_is_measured_alike(rng, kinds, shape, size, masked):
    a = rng.standard_normal(shape) * size
    b = a + rng.standard_normal(shape) * size * 1e-3
    with np.errstate(over="ignore"):
        a, b = (x.astype(FORMATS[kind].dtype) for x, kind in zip((a, b), kinds, strict=True))
    keep = rng.random(shape[:2]) < 0.6 if masked else None
    assert_alike(distance(a, b, keep), generally(a, b, keep))
    count = shape[0] * shape[1] if keep is None else int(keep.sum())
    weights = Weights(rng.uniform(1e-3, 1e2, count), rng.uniform(0.1, 10, shape[2]))
    assert_alike(distance(a, b, keep, weights), generally(a, b, keep, weights))


@settings(max_examples=60, deadline=None)
@given(
    rng=seeds(),
    kind=st.sampled_from(KINDS),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40)),
    masked=st.booleans(),
)
def test_the_size_of_a_state_is_measured_alike(rng, kind, shape, masked):
    a = rng.standard_normal(shape).astype(FORMATS[kind].dtype)
    keep = rng.random(shape[:2]) < 0.6 if masked else None
    assert_alike(distance(a, None, keep), generally(a, None, keep))


@settings(max_examples=60, deadline=None)
@given(
    rng=seeds(),
    rows=st.integers(1, 70),
    width=st.integers(1, 70),
    rank=st.integers(1, 12),
    patterns=st.booleans(),
)
def test_all_norms_at_once_are_those_found_one_by_one(rng, rows, width, rank, patterns):
    """Of differences of few patterns, too, of which vectors are left that have no direction."""
    off = rng.standard_normal((rows, rank)) @ (rng.standard_normal((rank, width)) * 1e-3)
    a, dead = rng.standard_normal((1, rows, width)), rng.random(rows) < 0.4
    b = a + off.round(3)
    alive = None if dead.all() or not dead.any() else ~dead
    weights = Weights(rng.uniform(0.1, 10, rows), rng.uniform(0.1, 10, width), alive)
    fast = at_once(a[0], b[0], weights, patterns)
    assert fast is not None
    assert_alike(fast, generally(a, b, None, weights) if patterns else unpatterned(a, b, weights))


def at_once(a: Array, b: Array, weights: Weights, patterns: bool) -> Norms | None:
    given = weights.tokens, weights.channels, weights.alive
    found = norms.fast_norms(a, b, None, *given, norms.UPPER_TAIL_QUANTILE, patterns)
    return None if found is None else Norms(*found)


def unpatterned(a: Array, b: Array, weights: Weights) -> Norms:
    return replace(generally(a, b, None, weights), spectral=0.0)


@pytest.mark.parametrize("size", [1e-15, 1e15])
def test_patterns_beyond_products_of_float32_are_found_otherwise(size):
    a, b = np.random.default_rng(0).standard_normal((2, 1, 16, 24)) * size
    assert at_once(a[0], b[0], norms.even(16, 24), patterns=True) is None
    assert at_once(a[0], b[0], norms.even(16, 24), patterns=False) is not None
    assert_alike(distance(a, b), generally(a, b))


@pytest.mark.parametrize("shape", [(2, 64, 257), (1, 9, 8192), (1, 5, 9001), (3, 1, 1)], ids=str)
def test_states_of_all_widths(shape):
    rng = np.random.default_rng(0)
    b = rng.standard_normal(shape)
    a = (b + 1e-6 * rng.standard_normal(shape)).astype(np.float32)
    a[..., -1] += np.float32(1e-4)  # one bad channel: a pattern that stands out
    assert_alike(distance(a, b), generally(a, b))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(1, 1300, 701), (3, 17, 32000)], ids=str)
def test_states_that_are_looked_at_in_pieces(shape, masked):
    rng = np.random.default_rng(0)
    b = rng.standard_normal(shape)
    a = (b + 1e-6 * rng.standard_normal(shape)).astype(np.float32)
    keep = rng.random(shape[:2]) < 0.8 if masked else None
    count = shape[0] * shape[1] if keep is None else int(keep.sum())
    weights = Weights(rng.uniform(1e-3, 1e2, count), rng.uniform(0.1, 10, shape[2]))
    found = distance(a, b, keep, weights)
    assert_alike(found, generally(a, b, keep, weights))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_norms, "in_threads", lambda look, items: [look(item) for item in items])
        assert distance(a, b, keep, weights) == found  # however many threads there are


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_infinitely_far(bad):
    a = np.ones((2, 9, 16), np.float32)
    a[1, 3, 5] = bad
    assert distance(a, np.ones_like(a)) == FAR
    keep = np.ones((2, 9), bool)
    keep[1, 3] = False
    assert distance(a, np.ones_like(a), keep) == ZERO


def test_a_state_that_is_not_contiguous():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((2, 32, 12)).astype(np.float32) for _ in range(2))
    turned = [x.transpose(0, 2, 1) for x in (a, b)]
    assert_alike(distance(*turned), generally(*turned))


@pytest.mark.parametrize("shape", [(8, 8), (9, 600), (11, 256), (64, 257)], ids=str)
def test_products_leave_nothing_out(shape):
    rng = np.random.default_rng(2)
    matrix = rng.standard_normal(shape).astype(np.float32)
    both = spectral.fast_products(matrix)
    assert both is not None
    for times, left in zip(both, (matrix, matrix.T), strict=True):
        vectors = rng.standard_normal((left.shape[1], spectral.SKETCH_VECTORS)).astype(np.float32)
        np.testing.assert_allclose(times(vectors), left @ vectors, rtol=1e-4, atol=1e-4)
