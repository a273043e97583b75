"""Every number of `measure`, against arithmetic a reader can check."""

from __future__ import annotations

import dataclasses
import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from driftwalk.dtypes import FORMATS, Array
from driftwalk.measure import metrics
from driftwalk.measure.metric_list import METRICS, Metric, Metrics, Nonfinite, Worst
from driftwalk.measure.metrics import Measured, exceeded_by_row, measure
from driftwalk.tolerance import BY_DTYPE, Tolerance
from unit.material import FLOATS, pairs, seeds

pytestmark = pytest.mark.filterwarnings("error")
some = settings(max_examples=80, deadline=None)
formats = pytest.mark.parametrize("known", FLOATS, ids=lambda f: f.name)

ANY = Tolerance(1e-3, 1e-3)
EXACT = Tolerance(0.0)


def by_hand(r: Array, c: Array, tolerance: Tolerance, scale: float) -> dict[str, float]:
    """The definitions in decimals of 60 digits, which round nothing and cannot overflow."""
    floats = [
        *zip(
            r.astype(np.float64).ravel().tolist(),
            c.astype(np.float64).ravel().tolist(),
            strict=True,
        )
    ]
    mismatched = sum(
        abs(c - r) > tolerance.atol * scale + tolerance.rtol * abs(r) for r, c in floats
    )
    with localcontext(prec=60):
        pairs = [(Decimal(r), Decimal(c)) for r, c in floats]
        size = len(pairs)
        signal, other, noise = (
            sum(v * v for v in values).sqrt()
            for values in ([r for r, _ in pairs], [c for _, c in pairs], [c - r for r, c in pairs])
        )
        if signal and other:
            cosine = sum(r * c for r, c in pairs) / (signal * other)
        else:
            cosine = Decimal(signal == other)
        expected = {
            "max_abs": max(abs(c - r) for r, c in pairs),
            "max_rel": max(ratio(abs(c - r), abs(r)) for r, c in pairs),
            "mean_abs": sum(abs(c - r) for r, c in pairs) / size,
            "rmse": noise / Decimal(size).sqrt(),
            "rel_l2": ratio(noise, signal),
            "cosine": cosine,
            "snr_db": -20 * ratio(noise, signal).log10(),
        }
    found = {name: float(value) for name, value in expected.items()}
    return found | {"mismatched": mismatched, "total": size}


def ratio(top: Decimal, bottom: Decimal) -> Decimal:
    return top / bottom if bottom else Decimal("inf") if top else Decimal(0)


def assert_same(a: Measured, b: Measured) -> None:
    """Equal, but for the last bits of sums that were added up in another order."""
    for field in dataclasses.fields(a.metrics):
        one, two = getattr(a.metrics, field.name), getattr(b.metrics, field.name)
        if isinstance(one, float):
            assert one == pytest.approx(two, rel=1e-9, abs=1e-12, nan_ok=True), field.name
        else:
            assert repr(one) == repr(two), field.name  # repr: a NaN equals itself
    assert a.scale == pytest.approx(b.scale, rel=1e-12)
    assert a.exceeded == pytest.approx(b.exceeded, rel=1e-9)
    assert a.tokens == b.tokens


# -- the definitions -------------------------------------------------------------------------------


@formats
@some
@given(data=st.data(), tolerance=st.sampled_from([ANY, EXACT, Tolerance(1e-2, 0.0, "rms")]))
def test_every_metric_follows_its_definition(known, data, tolerance):
    r, c = data.draw(pairs(known))
    found = measure(r, c, tolerance)
    expected = by_hand(r, c, tolerance, found.scale)
    if 2800 < expected["snr_db"] < math.inf:  # float64 has no room for the square of that
        assert found.metrics.snr_db > 2800
        del expected["snr_db"]
    peak = float(np.abs(np.stack([r, c]).astype(np.float64)).max())
    rooms = {"cosine": 1e-12, "snr_db": 1e-9, "rel_l2": 1e-140}
    rooms |= dict.fromkeys(("rmse", "mean_abs"), peak * 1e-140)
    for name, value in expected.items():
        got = getattr(found.metrics, name)
        room = max(rooms.get(name, 0.0), 1e-320)
        assert got == pytest.approx(value, rel=1e-9, abs=room), name


@formats
@some
@given(data=st.data())
def test_scale_is_the_rms_of_the_reference_where_the_tolerance_asks_for_it(known, data):
    r, c = data.draw(pairs(known))
    zero = np.zeros_like(r)
    rms = by_hand(zero, r, ANY, 1.0)["rmse"]
    assert measure(r, c, BY_DTYPE[known.name]).scale == pytest.approx(rms, rel=1e-9, abs=1e-320)
    assert measure(r, c, ANY).scale == 1.0


@formats
@some
@given(data=st.data())
def test_identical_states_have_no_difference(known, data):
    r, _ = data.draw(pairs(known))
    found = measure(r, r.copy(), EXACT)
    m = found.metrics
    assert (m.max_abs, m.max_rel, m.mean_abs, m.rmse, m.rel_l2) == (0, 0, 0, 0, 0)
    assert (m.mismatched, m.total, m.nonfinite) == (0, r.size, Nonfinite(0, 0))
    assert (m.ulp_max, m.ulp_p99, m.snr_db, found.exceeded) == (0, 0, math.inf, 0)
    assert m.cosine == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3), (0, 2, 3), (2, 3, 0)])
def test_an_empty_state_is_measured_as_nothing(shape):
    found = measure(np.zeros(shape), np.zeros(shape), ANY)
    assert (found.metrics.total, found.metrics.mismatched, found.metrics.worst) == (0, 0, None)
    assert (found.metrics.max_abs, found.metrics.rmse, found.exceeded) == (0, 0, 0)


def test_unequal_shapes_are_refused_rather_than_broadcast():
    with pytest.raises(ValueError, match=r"\(2, 1\) and \(2, 3\)"):
        measure(np.zeros((2, 1)), np.zeros((2, 3)), ANY)


def test_integer_and_bool_states_are_measured_without_ulps():
    found = measure(np.array([1, 2]), np.array([1, 4]), ANY).metrics
    assert (found.max_abs, found.mismatched) == (2, 1)
    assert math.isnan(found.ulp_max)
    assert measure(np.array([True]), np.array([False]), ANY).metrics.max_abs == 1


def test_ulps_are_counted_in_the_format_of_the_candidate():
    r, c = np.array([1.0]), np.array([1 + 2**-10], np.float16)
    assert measure(r, c, ANY).metrics.ulp_max == 1
    assert measure(r.astype(np.float32), c.astype(np.float32), ANY).metrics.ulp_max == 2**13


def test_the_99th_percentile_of_ulps_leaves_out_one_outlier_in_two_hundred():
    r = np.ones((2, 10, 10), np.float32)
    c = np.nextafter(r, np.float32(2))
    c[1, 9, 9] = 2
    found = measure(r, c, ANY).metrics
    assert (found.ulp_p99, found.ulp_max) == (1, 2**23)


# -- precision and range ---------------------------------------------------------------------------


def test_half_precision_is_upcast_before_it_is_subtracted():
    r, c = np.array([60000], np.float16), np.array([-60000], np.float16)
    found = measure(r, c, ANY).metrics
    assert (found.max_abs, found.mean_abs, found.rmse) == (120000, 120000, 120000)
    assert found.nonfinite == Nonfinite(0, 0)


def test_a_sum_is_kept_in_float64():
    r = np.zeros((1, 4, 1024), np.float32)
    c = np.full_like(r, 1e30)
    assert measure(r, c, ANY).metrics.rmse == pytest.approx(1e30, rel=1e-6)


@pytest.mark.parametrize("size", [1e-310, 1e-200, 1e200, 1e300])
def test_float64_states_whose_squares_do_not_fit_are_still_told_apart(size):
    r, c = np.array([size, -size, size]), np.array([-size, size, -size])
    found = measure(r, c, BY_DTYPE["fp64"])
    assert found.metrics.mismatched == 3
    assert found.metrics.rel_l2 == pytest.approx(2)
    assert found.metrics.cosine == pytest.approx(-1)
    assert found.metrics.snr_db == pytest.approx(-20 * math.log10(2))
    assert found.scale == pytest.approx(size)


def test_one_huge_candidate_value_does_not_shrink_the_scale_of_the_reference():
    r = np.array([[1.0, 1.0], [1.0, 1.0]])
    c = np.array([[1.0, 1e200], [1.0, 1.0 + 1e-9]])
    found = measure(r, c, BY_DTYPE["fp64"])
    assert (found.scale, found.metrics.mismatched) == (1.0, 1)


def test_a_difference_beyond_float64_is_infinite_and_does_not_pass():
    r = np.array([1.7e308, 1.0])
    found = measure(r, -r, Tolerance(1e300, 0.5))
    assert found.metrics.max_abs == math.inf
    assert found.metrics.mismatched == 1
    assert found.metrics.rel_l2 == pytest.approx(2)
    assert found.metrics.cosine == pytest.approx(-1)


# -- where -----------------------------------------------------------------------------------------


@formats
@some
@given(data=st.data())
def test_worst_is_the_first_element_with_the_largest_difference(known, data):
    r, c = data.draw(pairs(known))
    gap = np.abs(c.astype(np.float64) - r.astype(np.float64))
    index = tuple(int(i) for i in np.unravel_index(int(gap.argmax()), gap.shape))
    assert measure(r, c, ANY).metrics.worst == Worst(index, float(r[index]), float(c[index]))


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_worst_is_the_candidates_first_nonfinite_element_however_large_others_are(
    monkeypatch, block
):
    monkeypatch.setattr(metrics, "BLOCK", block)
    r, c = np.zeros((2, 3, 2)), np.zeros((2, 3, 2))
    r[0, 0, 1] = np.nan
    c[0, 1, 0] = 1e9
    c[1, 2, 1] = np.inf
    assert measure(r, c, ANY).metrics.worst == Worst((1, 2, 1), 0.0, math.inf)
    c[1, 2, 1] = 0.0
    worst = measure(r, c, ANY).metrics.worst
    assert worst is not None
    assert worst.index == (0, 0, 1), "the reference's, where the candidate has none"


# -- padding ---------------------------------------------------------------------------------------


@formats
@some
@given(data=st.data(), last=st.booleans())
def test_padding_counts_for_nothing_whatever_stands_there(known, data, last):
    shape = (2, 3, *data.draw(hnp.array_shapes(min_dims=1, max_dims=2, max_side=3)))
    r, c = data.draw(pairs(known, st.just(shape)))
    keep = np.array([[True, False, last], [False, True, True]])
    spoiled_r, spoiled_c = r.copy(), c.copy()
    spoiled_r[~keep] = np.inf
    spoiled_c[~keep] = np.nan

    found = measure(spoiled_r, spoiled_c, BY_DTYPE[known.name], keep)
    rows = measure(r[keep][None], c[keep][None], BY_DTYPE[known.name])
    assert found.tokens is not None
    assert rows.tokens is not None
    assert found.metrics.total == int(keep.sum()) * math.prod(shape[2:])
    assert [t for row in found.tokens for t in row if t is not None] == list(rows.tokens[0])
    assert [[t is not None for t in row] for row in found.tokens] == keep.tolist()
    assert found.metrics.worst is not None
    assert keep[found.metrics.worst.index[:2]], "the worst element is one that counts"
    for one in (found, rows):  # indices differ, the pair of values does not
        object.__setattr__(one.metrics, "worst", dataclasses.replace(one.metrics.worst, index=()))
        object.__setattr__(one, "tokens", None)
    assert_same(found, rows)


def test_with_everything_padded_nothing_is_measured():
    found = measure(np.ones((1, 2, 3)), np.zeros((1, 2, 3)), ANY, np.zeros((1, 2), bool))
    assert (found.metrics.total, found.metrics.mismatched, found.metrics.worst) == (0, 0, None)
    assert found.tokens is None


# -- tolerance -------------------------------------------------------------------------------------

moderate = hnp.arrays(
    np.float64, (2, 2, 3), elements=st.one_of(st.just(0.0), st.floats(-1e6, 1e6, width=32))
)


@some
@given(
    r=moderate,
    c=moderate,
    atol=st.floats(1e-8, 1.0),
    rtol=st.floats(0, 1.0),
    scale=st.sampled_from(["one", "rms"]),
)
def test_exceeded_is_what_the_tolerance_must_be_multiplied_with_to_pass(r, c, atol, rtol, scale):
    found = measure(r, c, Tolerance(atol, rtol, scale))
    assume(0 < found.exceeded < 1e200)

    def mismatched(factor: float) -> int:
        return measure(r, c, Tolerance(atol * factor, rtol * factor, scale)).metrics.mismatched

    assert mismatched(found.exceeded * (1 + 1e-12)) == 0
    assert mismatched(found.exceeded * (1 - 1e-6)) > 0
    assert (found.metrics.mismatched > 0) == (found.exceeded > 1)


def test_a_difference_where_none_is_allowed_exceeds_without_bound():
    assert measure(np.zeros(2), np.array([0, 1e-9]), Tolerance(0, 1)).exceeded == math.inf


def test_an_element_exactly_at_its_allowance_passes():
    assert measure(np.array([2.0]), np.array([2.75]), Tolerance(0.25, 0.25)).metrics.mismatched == 0
    beyond = np.array([np.nextafter(2.75, 3)])
    assert measure(np.array([2.0]), beyond, Tolerance(0.25, 0.25)).metrics.mismatched == 1


@some
@given(
    r=hnp.arrays(np.float64, (2, 3, 2), elements=st.floats(-4, 4, width=16)),
    c=hnp.arrays(np.float64, (2, 3, 2), elements=st.floats(-4, 4, width=16)),
    power=st.integers(-40, 40),
)
def test_with_rms_scaling_the_verdict_does_not_depend_on_the_size_of_the_state(r, c, power):
    tolerance = Tolerance(1e-1, 1e-2, "rms")
    one, two = measure(r, c, tolerance), measure(r * 2.0**power, c * 2.0**power, tolerance)
    assert one.metrics.mismatched == two.metrics.mismatched
    assert one.exceeded == two.exceeded
    assert one.scale * 2.0**power == two.scale


# -- blocks and tokens -----------------------------------------------------------------------------


@formats
@pytest.mark.parametrize("block", [1, 3, 7])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_the_numbers_do_not_depend_on_the_size_of_a_block(known, block, data):
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=4, max_side=4))
    r, c = data.draw(pairs(known, st.just(shape)))
    rng = data.draw(seeds())
    keep = rng.random(shape[:2]) < 0.7 if len(shape) > 2 else None
    if data.draw(st.booleans()):
        r.flat[rng.integers(r.size)] = np.nan
        c.flat[rng.integers(c.size)] = np.inf
    whole = measure(r, c, BY_DTYPE[known.name], keep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "BLOCK", block)
        assert_same(measure(r, c, BY_DTYPE[known.name], keep), whole)


def test_a_state_that_is_not_contiguous_is_measured_like_its_copy():
    r = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(0, 2, 1)
    c = r * np.float32(1.5)
    assert_same(measure(r, c, ANY), measure(np.ascontiguousarray(r), c.copy(), ANY))


def test_big_endian_states_are_read_right():
    r = np.array([1.0, 2.0], ">f4")
    found = measure(r, r.astype("<f4"), ANY).metrics
    assert (found.max_abs, found.ulp_max) == (0, 0)


def test_fp8_states_are_measured():
    r = np.array([1.0, 2.0, 448.0]).astype(FORMATS["fp8"].dtype)
    c = np.array([1.125, 2.0, -448.0]).astype(FORMATS["fp8"].dtype)
    found = measure(r, c, ANY).metrics
    assert (found.max_abs, found.mismatched) == (896, 2)


def test_every_number_of_a_comparison_is_listed() -> None:
    """A metric that were not in the list would be in no table and could not be bounded."""
    numbers = [field.name for field in dataclasses.fields(Metrics)][: len(METRICS)]
    assert [metric.name for metric in METRICS] == numbers
    rest = [field.name for field in dataclasses.fields(Metrics)][len(METRICS) :]
    assert rest == ["mismatched", "total", "nonfinite", "worst"]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_what_a_metric_is_without_a_difference(metric: Metric) -> None:
    state = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    same = measure(state, state.copy(), Tolerance(1e-3)).metrics
    other = measure(state, state + np.float32(0.01), Tolerance(1e-3)).metrics
    found, worse = getattr(same, metric.name), getattr(other, metric.name)
    assert found == pytest.approx(metric.no_difference)
    assert worse > found if metric.bigger_is_worse else worse < found


@some
@given(
    hnp.arrays(np.float32, (3, 7), elements=st.floats(-1e3, 1e3, width=32)),
    hnp.arrays(np.float32, (3, 7), elements=st.floats(-1, 1, width=32)),
    st.sampled_from(["rms", "one"]),
)
def test_rows_together_exceed_what_each_does_alone(reference, change, scale):
    candidate, tolerance = reference + change, Tolerance(1e-3, 1e-2, scale)
    together = exceeded_by_row(reference, candidate, tolerance)
    alone = [
        measure(one[None], other[None], tolerance).exceeded
        for one, other in zip(reference, candidate, strict=True)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-5)
