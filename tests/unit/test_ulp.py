"""ULP distance counts the floats between two values, in the order of the number line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import FORMATS, Array, Format
from driftwalk.measure.ulp import UlpHistogram, ulp_distance
from unit.material import FLOATS, numbers

some = settings(max_examples=80, deadline=None)
formats = pytest.mark.parametrize("known", FLOATS, ids=lambda f: f.name)


def array(known: Format, *values: float) -> Array:
    return np.array(values, np.float64).astype(known.dtype)


def apart(known: Format, a: float, b: float) -> int:
    return int(ulp_distance(array(known, a), array(known, b), known)[0])


def step(known: Format, steps: int) -> Array:
    """The float that many steps above zero: its bits, read as a number, are the count."""
    bits = np.array([steps], f"u{known.dtype.itemsize}")
    return bits.view(known.dtype)


def largest_step(known: Format) -> int:
    """Steps from zero to the largest finite float."""
    infinity = np.array([np.inf]).astype(known.dtype)
    return int(infinity.view(f"u{known.dtype.itemsize}")[0]) - 1


@formats
@some
@given(data=st.data())
def test_neighbours_are_one_apart(known, data):
    value = array(known, data.draw(numbers(known)))
    for end in (-math.inf, math.inf):
        with np.errstate(over="ignore"):  # infinity is the neighbour of the largest
            neighbour = np.nextafter(value, array(known, end))
        assert ulp_distance(value, neighbour, known).tolist() == [1]


@formats
@some
@given(data=st.data())
def test_it_is_symmetric_and_adds_up_along_the_number_line(known, data):
    low, middle, high = sorted(data.draw(st.tuples(*[numbers(known)] * 3)))
    assert apart(known, low, high) == apart(known, high, low)
    assert apart(known, low, high) == apart(known, low, middle) + apart(known, middle, high)
    assert (apart(known, low, middle) == 0) == (array(known, low) == array(known, middle)).all()


@formats
def test_both_zeros_are_one_and_the_way_across_is_counted(known):
    assert apart(known, -0.0, 0.0) == 0
    tiny = step(known, 1)
    assert ulp_distance(-tiny, tiny, known).tolist() == [2]
    assert ulp_distance(tiny, np.array([-0.0]).astype(known.dtype), known).tolist() == [1]


@formats
def test_the_two_ends_of_a_format_do_not_wrap_around(known):
    end = step(known, largest_step(known))
    assert ulp_distance(-end, end, known).tolist() == [2 * largest_step(known)]
    assert ulp_distance(end, -end, known).tolist() == [2 * largest_step(known)]


def test_each_side_is_first_rounded_to_the_format_asked_for():
    r = np.array([1.0 + 1e-12, 1.0])
    c = np.array([1.0, 1.0 + 2**-10], np.float16)
    assert ulp_distance(r, c, FORMATS["fp16"]).tolist() == [0, 1]


# -- the histogram ---------------------------------------------------------------------------------


def histogram(known: Format, distances: list[int], block: int = 1000) -> UlpHistogram:
    made = UlpHistogram()
    for start in range(0, len(distances), block):
        part = distances[start : start + block]
        steps = np.array(part, f"u{known.dtype.itemsize}").view(known.dtype)
        made.add(np.zeros(len(part), known.dtype), steps, known)
    return made


def exact_quantile(distances: list[int], q: float) -> int:
    return sorted(distances)[max(0, math.ceil(q * len(distances)) - 1)]


@formats
@some
@given(
    distances=st.lists(st.integers(0, 15), min_size=1, max_size=60),
    q=st.sampled_from([0.25, 0.5, 0.75, 1.0]),
)
def test_quantiles_up_to_fifteen_are_exact(known, distances, q):
    assert histogram(known, distances).quantile(q) == exact_quantile(distances, q)


@formats
@some
@given(data=st.data(), q=st.sampled_from([0.25, 0.5, 0.75, 1.0]))
def test_larger_quantiles_are_right_to_an_eighth_of_an_octave(known, data, q):
    count = st.one_of(
        st.integers(0, largest_step(known)),
        st.integers(4, largest_step(known).bit_length() - 1).map(lambda bits: 2**bits - 1),
    )
    distances = data.draw(st.lists(count, min_size=1, max_size=40))
    made = histogram(known, distances)
    exact = exact_quantile(distances, q)
    assert exact / 1.125 <= made.quantile(q) <= exact * (1 + 2**-24)
    assert made.max == float(max(distances))
    assert made.quantile(q) <= made.max


@formats
def test_blocks_add_up(known):
    distances = [*range(16)] * 5 + [20] * 20
    one, many = histogram(known, distances), histogram(known, distances, block=3)
    for q in (0.1, 0.5, 0.79, 0.99):
        assert one.quantile(q) == many.quantile(q)
    assert one.max == many.max == 20


def test_one_outlier_in_a_thousand_is_the_maximum_but_not_the_99th_percentile():
    made = histogram(FORMATS["fp32"], [1] * 999 + [10**6])
    assert (made.quantile(0.99), made.max) == (1.0, 1e6)


def test_nothing_added_is_zero():
    made = UlpHistogram()
    made.add(np.zeros(0, np.float32), np.zeros(0, np.float32), FORMATS["fp32"])
    assert (made.max, made.quantile(0.99)) == (0.0, 0.0)
