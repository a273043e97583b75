"""Compiled code measures what plain numpy measures: exactly, but for the last digits of sums."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import FORMATS, Array
from driftwalk.measure import fused, metrics
from driftwalk.measure.metrics import Measured, measure
from driftwalk.tolerance import BY_DTYPE, Tolerance
from unit.material import pairs, seeds

pytestmark = pytest.mark.skipif(
    fused.library() is None, reason="the package was not built with a C compiler"
)
FP32 = FORMATS["fp32"]
TOLERANCES = [BY_DTYPE["fp32"], Tolerance(0.0), Tolerance(0.0, 1e-6), Tolerance(1e-6, 1e-6)]
EXACT = ("max_abs", "ulp_max", "ulp_p99", "mismatched", "total", "nonfinite", "worst")
SUMS = ("mean_abs", "rmse", "rel_l2", "snr_db")


def generally(r: Array, c: Array, tolerance: Tolerance, keep: Array | None = None) -> Measured:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "usable", lambda pair: False)
        return measure(r, c, tolerance, keep)


def assert_alike(fast: Measured, slow: Measured, sums: float) -> None:
    for name in EXACT:
        assert repr(getattr(fast.metrics, name)) == repr(getattr(slow.metrics, name)), name
    assert fast.metrics.max_rel == pytest.approx(slow.metrics.max_rel, rel=1e-12, abs=1e-300)
    for name in SUMS:
        one, two = getattr(fast.metrics, name), getattr(slow.metrics, name)
        room = 1e-12 if name == "snr_db" else 1e-300  # decibels may be zero
        assert one == pytest.approx(two, rel=sums, abs=room), name
    assert fast.metrics.cosine == pytest.approx(slow.metrics.cosine, abs=1e-9)
    assert fast.scale == pytest.approx(slow.scale, rel=sums)
    assert fast.exceeded == pytest.approx(slow.exceeded, rel=10 * sums)
    # Four digits, the last of which may be rounded otherwise; None is nan here.
    tokens = pytest.approx(np.array(slow.tokens, float), rel=2e-3, abs=1e-300, nan_ok=True)
    assert np.array(fast.tokens, float) == tokens


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rng=seeds(), tolerance=st.sampled_from(TOLERANCES), block=st.integers(1, 40))
def test_any_floats_are_measured_alike(data, rng, tolerance, block):
    r, c = data.draw(pairs(FP32, st.just((2, 3, 5))))
    if data.draw(st.booleans()):
        r.flat[rng.integers(r.size)] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    keep = rng.random((2, 3)) < 0.7 if data.draw(st.booleans()) else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "BLOCK", block)
        assert_alike(measure(r, c, tolerance, keep), generally(r, c, tolerance, keep), 1e-12)


def state(seed: int = 0, shape: tuple[int, ...] = (2, 40, 768), size: float = 1.0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(size)


def noisy(r: Array, noise: float, seed: int = 1) -> Array:
    return r + state(seed, r.shape) * np.float32(noise)


CASES = {
    "rounding noise": lambda r: noisy(r, 1e-6),
    "one unit here and there": lambda r: np.where(state(2) > 1.5, np.nextafter(r, r + 1), r),
    "one unit in half of all": lambda r: np.where(state(2) > 0, np.nextafter(r, r + 1), r),
    "coarse noise": lambda r: noisy(r, 1e-3),
    "unrelated": lambda r: state(3),
    "negated": lambda r: -r,
    "doubled": lambda r: r * np.float32(2),
    "another scale": lambda r: r * np.float32(1.0001),
    "identical": lambda r: r.copy(),
    "one row differs": lambda r: np.concatenate([noisy(r[:, :1], 1e-5), r[:, 1:]], axis=1),
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("tolerance", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1.0, 1e-30, 3e-22, 1e25])
def test_whole_states_are_measured_alike(case, tolerance, size):
    r, c = state(size=size), CASES[case](state()) * np.float32(size)
    fast, slow = measure(r, c, tolerance), generally(r, c, tolerance)
    assert_alike(fast, slow, 1e-6)


def test_zeros_and_numbers_below_the_normal_range():
    r, c = state(), noisy(state(), 1e-6)
    r[0, 3, ::7], c[0, 3, ::7] = 0, 0
    r[1, 5, 5], c[1, 5, 5] = 2.0**-149, 2.0**-148
    assert_alike(measure(r, c, TOLERANCES[0]), generally(r, c, TOLERANCES[0]), 1e-6)
    r[1, 5, 6], c[1, 5, 6] = 0.0, 2.0**-149
    found = measure(r, c, TOLERANCES[0])
    assert found.metrics.max_rel == math.inf
    assert_alike(found, generally(r, c, TOLERANCES[0]), 1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nonfinite_element_in_a_whole_state(bad):
    r, c = state(), noisy(state(), 1e-6)
    for side in (c, r):
        side[1, 7, 9] = bad
        assert_alike(measure(r, c, TOLERANCES[0]), generally(r, c, TOLERANCES[0]), 1e-6)


@pytest.mark.parametrize("kinds", [*product(("fp32", "fp16", "bf16"), repeat=2)], ids="-".join)
@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 40, 768)], ids=str)
@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0])
def test_formats_of_16_bits_are_measured_in_their_own_steps(kinds, shape, noise):
    r = state(shape=shape, size=3.0)
    c = noisy(r, noise)
    r[0, 1, :3], c[0, 1, :3] = [1e5, 0.0, 1e-7], [1e5, 1e-7, -1e-7]  # beyond fp16 on both ends
    c[1, 2, 4] = np.nan
    with np.errstate(over="ignore"):
        r, c = (x.astype(FORMATS[kind].dtype) for x, kind in zip((r, c), kinds, strict=True))
    keep = np.ones(shape[:2], bool)
    for rows in (None, keep):
        fast, slow = (way(r, c, TOLERANCES[0], rows) for way in (measure, generally))
        assert_alike(fast, slow, 1e-6)
        keep[0, 1] = keep[1, 2] = False


@pytest.mark.parametrize("width", [1023, 1025, 5003, 20011])
def test_rows_wider_than_a_chunk(width):
    r = state(shape=(1, 5, width))
    c, keep = noisy(r, 1e-6), np.array([[True, False, True, True, False]])
    assert_alike(measure(r, c, TOLERANCES[0], keep), generally(r, c, TOLERANCES[0], keep), 1e-6)


def test_differences_whose_squares_are_too_small_for_a_float32():
    r = state()
    r[..., 100] = 1e-30
    c = r.copy()
    c[..., 100] = 2e-30
    assert_alike(measure(r, c, TOLERANCES[0]), generally(r, c, TOLERANCES[0]), 1e-6)


def test_a_candidate_whose_squares_alone_leave_the_range():
    r = np.full((2, 40, 768), np.sqrt(3.4e38 / 768) * 0.99999, np.float32)
    c = r * np.float32(1.001)
    c[..., ::2] *= np.float32(1.01)
    c[..., 1::2] *= np.float32(0.99)
    assert_alike(measure(r, c, TOLERANCES[0]), generally(r, c, TOLERANCES[0]), 1e-6)


@pytest.mark.parametrize("over", [0.9995, 1.0005])
def test_one_element_on_either_side_of_its_allowance(over):
    r, room = state(), Tolerance(1e-3)
    c = r.copy()
    c[1, 7, 9] += np.float32(1e-3 * over)
    assert_alike(measure(r, c, room), generally(r, c, room), 1e-6)
    assert measure(r, c, room).metrics.mismatched == (over > 1)


@pytest.mark.parametrize("floor", [1.2e-45, 1e-40, 1e-30])
def test_allowances_for_which_a_float32_has_few_digits(floor):
    r = np.zeros((1, 2, 20), np.float32)
    c = np.float32(floor) * np.linspace(0, 2, 40, dtype=np.float32).reshape(r.shape)
    tolerance = Tolerance(floor)
    found = measure(r, c, tolerance)
    assert found.metrics.mismatched > 0
    assert_alike(found, generally(r, c, tolerance), 1e-6)


def test_a_distance_that_a_float32_rounds_up():
    r = np.ones((2, 40, 768), np.float32)
    c = (r.view(np.uint32) + np.uint32((1 << 25) - 1)).view(np.float32)
    fast = measure(r, c, TOLERANCES[0])
    assert_alike(fast, generally(r, c, TOLERANCES[0]), 1e-6)
    assert fast.metrics.ulp_p99 == fast.metrics.ulp_max == (1 << 25) - 1


def test_a_misleading_sample_costs_time_and_no_more(monkeypatch):
    r, c = state(), noisy(state(), 1e-6)
    slow = generally(r, c, TOLERANCES[0])
    for rest in (1, 2, 640, 896, 98_304, 1 << 22):  # edges of buckets
        monkeypatch.setattr(fused, "_SAMPLED", rest)
        assert_alike(measure(r, c, TOLERANCES[0]), slow, 1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_no_number_depends_on_how_threads_share_a_state(threads, monkeypatch):
    r = state(shape=(3, 41, 768))
    c = noisy(r, 1e-6)
    c[0, 9, 3] = c[2, 5, 7] = np.nan
    before = measure(r, c, TOLERANCES[0])
    monkeypatch.setattr(fused, "sharers", lambda: threads)
    assert repr(measure(r, c, TOLERANCES[0])) == repr(before)


def test_a_state_that_is_not_contiguous_and_one_that_is_mapped(tmp_path):
    r, c = state(shape=(2, 768, 40)), noisy(state(shape=(2, 768, 40)), 1e-6)
    turned = [x.transpose(0, 2, 1) for x in (r, c)]
    assert_alike(measure(*turned, TOLERANCES[0]), generally(*turned, TOLERANCES[0]), 1e-6)
    np.save(tmp_path / "r.npy", r)
    mapped = np.load(tmp_path / "r.npy", mmap_mode="r")
    assert measure(mapped, c, TOLERANCES[0]) == measure(r, c, TOLERANCES[0])


def test_sums_of_a_large_state_are_right_to_a_few_parts_in_ten_million():
    r = state(shape=(4, 256, 768))
    fast, slow = (way(r, noisy(r, 1e-6), TOLERANCES[0]) for way in (measure, generally))
    assert_alike(fast, slow, 2e-7)
    assert 1 - fast.metrics.cosine == pytest.approx(slow.metrics.rel_l2**2 / 2, rel=5e-3)


def test_compiled_code_can_be_switched_off():
    code = "from driftwalk.native import library; print(library() is None)"
    asked = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DRIFTWALK_NATIVE": "off", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout.strip() == "True"
