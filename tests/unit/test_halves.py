"""Formats of 16 bits: compiled code converts and counts as numpy does, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import FORMATS, Array
from driftwalk.measure.fused import library
from driftwalk.measure.halves import _TOGETHER, narrowed, widened
from driftwalk.measure.metrics import measure
from driftwalk.tolerance import Tolerance
from unit.material import seeds
from unit.test_fused import assert_alike, generally

pytestmark = pytest.mark.skipif(
    library() is None, reason="the package was not built with a C compiler"
)
KINDS = pytest.mark.parametrize("kind", [FORMATS["fp16"].dtype, FORMATS["bf16"].dtype], ids=str)
ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(autouse=True)
def _numpy_warns_of_nothing():
    with np.errstate(all="ignore"):
        yield


def assert_same(found: Array, expected: Array) -> None:
    """Bit by bit, but that one NaN is as good as another."""
    bits = f"u{found.dtype.itemsize}"
    same = found.view(bits) == expected.view(bits)
    assert found.dtype == expected.dtype
    assert (same | (np.isnan(found) & np.isnan(expected))).all()


def assert_narrowed(values: Array, kind: np.dtype) -> None:
    assert_same(narrowed(values, kind), values.astype(kind))


@KINDS
def test_every_value_is_widened(kind):
    assert_same(widened(ALL.view(kind)), ALL.view(kind).astype(np.float32))


@KINDS
def test_every_value_is_the_nearest_to_itself_and_to_what_is_about_it(kind):
    """Halfway to the next and a float32 to either side: where rounding is decided."""
    exact = ALL.view(kind).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    halfway = exact[:-1] + (exact[1:] - exact[:-1]) / 2
    above, below = (np.nextafter(halfway, np.float32(end)) for end in (np.inf, -np.inf))
    for values in (exact, halfway, above, below):
        assert_narrowed(values, kind)


@KINDS
@settings(max_examples=100, deadline=None)
@given(rng=seeds())
def test_any_float32_is_narrowed(kind, rng):
    assert_narrowed(rng.integers(0, 1 << 32, 4099, dtype=np.uint32).view(np.float32), kind)


@KINDS
@pytest.mark.parametrize("size", [0, 1, 7, _TOGETHER - 1, _TOGETHER, 2 * _TOGETHER + 3])
def test_any_number_of_them(kind, size):
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    assert_same(widened(narrowed(values, kind)), values.astype(kind).astype(np.float32))


def test_what_is_not_in_one_piece_and_what_has_other_formats():
    some = np.arange(24, dtype=np.float16).reshape(4, 6)
    assert_same(widened(some.T), some.T.astype(np.float32))
    assert_same(narrowed(some[:, ::2].astype(np.float32), some.dtype), some[:, ::2].copy())
    assert_same(narrowed(np.arange(3.0), some.dtype), np.arange(3, dtype=np.float16))
    assert_same(widened(np.arange(3.0)), np.arange(3.0))


@KINDS
@settings(max_examples=60, deadline=None)
@given(
    rng=seeds(),
    width=st.sampled_from([1, 5, 1024, 1027]),
    spread=st.sampled_from([4, 300, 1 << 16]),
)
def test_distances_are_counted_as_numpy_counts_them(kind, rng, width, spread):
    """Near and far, of either sign; some are not finite, which a format of 16 bits may round to."""
    r = rng.integers(0, 1 << 16, (2, 3, width), dtype=np.uint16)
    c = (r.astype(np.int64) + rng.integers(-spread, spread + 1, r.shape)) % (1 << 16)
    r, c = r.view(kind), c.astype(np.uint16).view(kind)
    finite = np.isfinite(r.astype(np.float32)) & np.isfinite(c.astype(np.float32))
    clean = np.where(finite, r, np.array(1, kind)), np.where(finite, c, np.array(2, kind))
    for one, other in ((r, c), clean):
        found, expected = measure(one, other, Tolerance(1.0)), generally(one, other, Tolerance(1.0))
        assert found.metrics.ulp_max == expected.metrics.ulp_max
        assert found.metrics.ulp_p99 == expected.metrics.ulp_p99
        assert found.metrics.nonfinite == expected.metrics.nonfinite


def test_a_reference_that_the_format_of_the_candidate_cannot_hold():
    r = np.full((1, 2, 2000), 7e4, np.float32)
    c = np.full(r.shape, 65504, np.float16)
    found = measure(r, c, Tolerance(1.0))
    assert found.metrics.ulp_max == 1, "the step to what is infinite counts"
    assert_alike(found, generally(r, c, Tolerance(1.0)), 1e-6)


def test_only_what_is_there_is_counted():
    """Fifteen of a thousand are two steps away; with zeros for company they would be too few."""
    c = np.full((1, 200, 5), 1, np.float16)
    r = (c.view(np.uint16) + 1).view(np.float16)
    r.reshape(-1)[::67] = np.float16(1) + np.float16(2) * np.float16(2.0**-10)
    assert measure(r, c, Tolerance(1.0)).metrics.ulp_p99 == 2
