"""NaN and Inf: counted apart, in no other number, and never let pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from driftwalk.measure.metric_list import Nonfinite
from driftwalk.measure.metrics import measure
from driftwalk.tolerance import BY_DTYPE, Tolerance
from unit.material import FLOATS, SHAPES, pairs, seeds

pytestmark = pytest.mark.filterwarnings("error")
some = settings(max_examples=80, deadline=None)

ANY = Tolerance(1e-3, 1e-3)
EXACT = Tolerance(0.0)


def test_nan_and_inf_are_counted_per_side_and_never_pass():
    r = np.array([1.0, np.nan, 3.0, np.inf, np.inf])
    c = np.array([np.nan, np.nan, 3.0, np.inf, -np.inf])
    found = measure(r, c, Tolerance(1e300, 1e300)).metrics
    assert found.nonfinite == Nonfinite(reference=3, candidate=4)
    assert found.mismatched == 4, "NaN = NaN and inf = inf are no agreement either"


@pytest.mark.parametrize("known", FLOATS[1:], ids=lambda f: f.name)
@some
@given(data=st.data(), rng=seeds(), bad=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_nonfinite_elements_do_not_touch_any_other_number(known, data, rng, bad):
    shape = data.draw(SHAPES)
    r, c = data.draw(pairs(known, st.just(shape)))
    hit_r, hit_c = np.asarray(rng.random((2, *shape)) < 0.2)
    good = ~(hit_r | hit_c)
    assume(good.any())
    spoiled_r, spoiled_c = r.copy(), c.copy()
    spoiled_r[hit_r], spoiled_c[hit_c] = bad, bad

    found = measure(spoiled_r, spoiled_c, ANY).metrics
    clean = measure(r[good], c[good], ANY).metrics
    assert found.nonfinite == Nonfinite(int(hit_r.sum()), int(hit_c.sum()))
    assert found.mismatched == clean.mismatched + int((~good).sum())
    assert found.total == r.size
    for name in ("max_abs", "max_rel", "mean_abs", "rmse", "rel_l2", "cosine", "snr_db"):
        expected = getattr(clean, name)
        assert getattr(found, name) == pytest.approx(expected, rel=1e-9, abs=1e-12), name
    assert (found.ulp_max, found.ulp_p99) == (clean.ulp_max, clean.ulp_p99)


def test_where_all_is_nan_the_numbers_are_zero_and_everything_is_mismatched():
    nan = np.full((1, 2, 2), np.nan)
    found = measure(nan, nan, BY_DTYPE["fp64"])
    assert (found.metrics.mismatched, found.metrics.total) == (4, 4)
    assert (found.metrics.max_abs, found.metrics.mean_abs, found.metrics.rmse) == (0, 0, 0)
    assert (found.scale, found.tokens) == (0.0, ((math.inf, math.inf),))


def test_the_scale_is_that_of_the_finite_elements():
    r = np.array([3.0, np.nan, np.inf, 3.0], np.float32)
    assert measure(r, np.ones(4, np.float32), BY_DTYPE["fp32"]).scale == 3.0


def test_no_tolerance_would_let_a_nan_pass():
    assert measure(np.array([1.0, 1.0]), np.array([1.0, np.nan]), ANY).exceeded == math.inf
