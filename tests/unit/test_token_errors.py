"""The error of each token: what heatmaps are made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.jsonable import decode, encode
from driftwalk.measure.metrics import measure, token_errors
from driftwalk.measure.tokens import TokenErrors, four_digits
from driftwalk.tolerance import BY_DTYPE, Tolerance

pytestmark = pytest.mark.filterwarnings("error")
some = settings(max_examples=80, deadline=None)

ANY = Tolerance(1e-3, 1e-3)
EXACT = Tolerance(0.0)


def test_the_token_profile_is_the_l2_of_each_position():
    r = np.zeros((2, 2, 2), np.float16)
    c = np.array([[[3, 4], [0, 0]], [[1, 0], [5, 12]]], np.float16)
    assert measure(r, c, ANY).tokens == ((5.0, 0.0), (1.0, 13.0))
    keep = np.array([[True, False], [True, True]])
    assert measure(r, c, ANY, keep).tokens == ((5.0, None), (1.0, 13.0))


def test_a_token_profile_is_kept_to_four_digits_and_needs_a_position_axis():
    assert measure(np.zeros((1, 1, 1)), np.full((1, 1, 1), 1 / 3), ANY).tokens == ((0.3333,),)
    assert measure(np.zeros((2, 3)), np.ones((2, 3)), ANY).tokens is None


AROUND = [*(10.0**k for k in range(-25, 26)), 0.99995, 9999.5, 1.0005, 12345.0, 0.00012345, np.inf]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(0, 1e300) | st.floats(1e-8, 1e8) | st.sampled_from(AROUND), min_size=1))
def test_four_digits_are_those_of_the_text(values):
    near = [*values, *np.nextafter(values, 0), *np.nextafter(values, np.inf)]
    assert four_digits(np.array(near)).tolist() == [float(f"{v:.4g}") for v in near]


def test_four_digits_where_the_fifth_is_a_five():
    values = [float(f"{digits}5e{power}") for digits in range(1000, 9999, 7) for power in (-9, -3)]
    expected = [float(f"{value:.4g}") for value in values]
    assert four_digits(np.array(values)).tolist() == expected


def test_a_profile_is_as_good_as_tuples():
    r, c = np.zeros((2, 2, 2)), np.array([[[3, 4], [0, 0]], [[1, 0], [5, 12]]], float)
    found = measure(r, c, ANY).tokens
    told = ((5.0, 0.0), (1.0, 13.0))
    assert (len(found), found[1], found[-1][0], found[:1]) == (2, (1.0, 13.0), 1.0, told[:1])
    assert told == found
    assert found == measure(r, c, ANY).tokens
    assert found != measure(r, 2 * c, ANY).tokens
    assert {found: "as a key"}[told] == "as a key"
    assert (repr(found), encode(found)) == (repr(told), [[5.0, 0.0], [1.0, 13.0]])
    assert decode(TokenErrors, encode(found)) == found


def test_token_errors_agree_with_what_measure_finds_on_the_way():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2, 5, 7)).astype(np.float32)
    b = a + rng.standard_normal(a.shape).astype(np.float32) * np.float32(1e-3)
    keep = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=bool)
    found = token_errors(b, a, keep)
    assert found == measure(a, b, BY_DTYPE["fp32"], keep).tokens
    assert found is not None
    assert found[0][3] is None
    b[1, 2, 3] = np.nan
    assert token_errors(b, a, keep) == measure(a, b, BY_DTYPE["fp32"], keep).tokens
    assert token_errors(b, a)[1][2] == math.inf
    assert token_errors(a[0], b[0]) is None, "no token axis"
