"""Decision impact: does the difference change what the model says?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from driftwalk.measure.decisions import decision_impact
from driftwalk.tolerance import Tolerance

some = settings(max_examples=80, deadline=None)
NONE = Tolerance(0.0)

logits = hnp.arrays(np.float64, (2, 3, 7), elements=st.floats(-50, 50))


def impact(reference, candidate, keep=None, tolerance=NONE, scale=1.0):
    found = decision_impact(np.asarray(reference), np.asarray(candidate), keep, tolerance, scale)
    assert found is not None
    return found


@some
@given(r=logits, c=logits)
def test_divergence_and_flips_follow_their_definitions(r, c):
    found = impact(r, c)
    p = np.exp(r) / np.exp(r).sum(-1, keepdims=True)
    q = np.exp(c) / np.exp(c).sum(-1, keepdims=True)
    kl = (p * np.log(p / q)).sum(-1)
    assert found.kl_mean == pytest.approx(kl.mean(), rel=1e-6, abs=1e-9)
    assert found.kl_max == pytest.approx(kl.max(), rel=1e-6, abs=1e-9)
    assert 0 <= found.kl_mean <= found.kl_max
    assert found.flips == int((r.argmax(-1) != c.argmax(-1)).sum()) == len(found.examples)
    assert found.positions == 6
    assert 0 <= found.ties <= found.flips


@some
@given(r=logits)
def test_identical_logits_change_nothing(r):
    found = impact(r, r.copy())
    assert (found.flips, found.ties, found.kl_mean, found.kl_max) == (0, 0, 0, 0)
    assert (found.top5_overlap, found.examples) == (1, ())


@some
@given(r=logits, shift=st.floats(-1e6, 1e6))
def test_a_constant_added_to_all_logits_is_no_divergence(r, shift):
    found = impact(r, r + shift)
    assert found.kl_max == pytest.approx(0, abs=1e-8)


def test_a_flip_tells_where_and_what_and_how_close_the_race_was():
    r = np.array([[[5.0, 1.0, 0.0], [0.0, 3.0, 2.5]]])
    c = np.array([[[5.0, 1.0, 0.0], [0.0, 2.0, 2.5]]])
    (flip,) = impact(r, c).examples
    assert (flip.index, flip.reference, flip.candidate) == ((0, 1), 1, 2)
    assert (flip.gap, flip.tie) == (0.5, False)


@pytest.mark.parametrize(("atol", "tie"), [(0.25, True), (0.2499, False)])
def test_a_flip_within_twice_the_tolerance_is_a_tie(atol, tie):
    r, c = np.array([[3.0, 2.5, 0.0]]), np.array([[2.0, 2.5, 0.0]])
    found = impact(r, c, tolerance=Tolerance(atol))
    assert (found.flips, found.ties, found.examples[0].tie) == (1, int(tie), tie)


def test_the_tolerance_of_a_tie_has_both_its_parts_and_its_scale():
    r, c = np.array([[-8.0, 3.0, 2.5]]), np.array([[-8.0, 2.0, 2.5]])
    assert impact(r, c, tolerance=Tolerance(0.0, 1 / 32)).ties == 1, "32nd of the largest, 8"
    assert impact(r, c, tolerance=Tolerance(0.0, 1 / 33)).ties == 0
    assert impact(r, c, tolerance=Tolerance(0.125), scale=2.0).ties == 1
    assert impact(r, c, tolerance=Tolerance(0.125), scale=1.9).ties == 0


def test_a_flip_to_an_outsider_is_no_tie_however_close_the_first_two_are():
    r, c = np.array([[3.0, 2.999, -40.0]]), np.array([[3.0, 2.999, 50.0]])
    (flip,) = impact(r, c, tolerance=Tolerance(0.01)).examples
    assert flip.gap == pytest.approx(0.001)
    assert not flip.tie


def test_top5_overlap_is_the_share_of_common_entries():
    r = np.array([[9.0, 8, 7, 6, 5, 0, 0, 0]])
    c = np.array([[9.0, 8, 7, 0, 0, 0.5, 6, 5]])
    assert impact(r, c).top5_overlap == pytest.approx(3 / 5)


def test_with_fewer_than_five_classes_all_of_them_are_the_top():
    assert impact(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])).top5_overlap == 1


def test_padding_is_left_out():
    r, c = np.zeros((2, 2, 3)), np.zeros((2, 2, 3))
    r[..., 0], c[..., 0] = 1, 1
    c[0, 1] = [0, 9, 0]
    c[1, 0] = np.nan
    keep = np.array([[True, False], [False, True]])
    found = impact(r, c, keep)
    assert (found.positions, found.flips, found.kl_max) == (2, 0, 0)
    shown = impact(r, c, np.array([[False, True], [False, True]]))
    assert [flip.index for flip in shown.examples] == [(0, 1)]


def test_a_position_with_nonfinite_logits_decides_nothing():
    r, c = np.eye(3), np.eye(3)
    r[0, 1], c[1, 0] = np.nan, -np.inf
    assert impact(r, c).positions == 1


def test_the_clearest_flips_are_shown_and_not_all_of_a_thousand():
    gaps = np.arange(1, 101.0)
    r = np.stack([gaps, 0 * gaps], axis=1)
    found = impact(r, r[:, ::-1])
    assert (found.flips, len(found.examples)) == (100, 32)
    assert [flip.gap for flip in found.examples] == sorted(gaps, reverse=True)[:32]


def test_half_precision_logits_are_upcast():
    r = np.array([[60000, -60000]], np.float16)
    found = impact(r, -r)
    assert (found.flips, found.kl_max, found.examples[0].gap) == (1, 120000, 120000)


def test_float64_logits_too_far_apart_to_subtract_still_diverge():
    r = np.array([[1.7e308, -1.7e308]])
    assert impact(r, -r).kl_max == math.inf
    assert impact(r, r.copy()).kl_max == 0


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4))),
        (np.zeros(3), np.zeros(3)),
        (np.array(1.0), np.array(1.0)),
        (np.zeros((2, 1)), np.zeros((2, 1))),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.full((2, 3), np.nan), np.zeros((2, 3))),
    ],
    ids=["shapes differ", "no positions", "scalar", "one class", "empty", "all NaN"],
)
def test_none_where_there_is_nothing_to_decide(reference, candidate):
    assert decision_impact(reference, candidate, None, NONE, 1.0) is None


def test_none_where_all_is_padding():
    ones = np.ones((1, 2, 3))
    assert decision_impact(ones, ones, np.zeros((1, 2), bool), NONE, 1.0) is None


# -- long rows of float32 --------------------------------------------------------------------------


def vocabulary(size: float, noise: float, rows: int = 3):
    rng = np.random.default_rng(0)
    r = rng.standard_normal((1, rows, 5003), np.float32) * np.float32(size)
    return r, r + rng.standard_normal(r.shape, np.float32) * np.float32(noise)


@pytest.mark.parametrize("size", [1e-3, 1.0, 8.0, 40.0])
@pytest.mark.parametrize("noise", [1e-6, 1e-5, 2e-4])
def test_close_float32_logits_are_judged_as_in_float64(size, noise):
    r, c = vocabulary(size, noise)
    fast, exact = impact(r, c), impact(r.astype(np.float64), c.astype(np.float64))
    assert fast.kl_mean == pytest.approx(exact.kl_mean, rel=1e-4, abs=1e-14)
    assert fast.kl_max == pytest.approx(exact.kl_max, rel=1e-4, abs=1e-14)
    assert (fast.flips, fast.ties, fast.top5_overlap) == (
        exact.flips,
        exact.ties,
        exact.top5_overlap,
    )


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("noise", [0.0, 1e-6, 9e-4, 2e-3, 0.1, 3.0])
@pytest.mark.parametrize(("size", "width"), [(1.0, 5), (3.0, 63), (8.0, 5003), (60.0, 1024)])
def test_compiled_code_decides_as_float64_does(dtype, noise, size, width):
    rng = np.random.default_rng(width)
    r = (rng.standard_normal((2, 9, width)) * size).astype(dtype)
    c = (r + rng.standard_normal(r.shape) * noise).astype(dtype)
    c[0, 3], r[1, 4, 2], c[1, 5, 1] = r[0, 3], np.nan, np.inf
    keep = np.array([[1] * 7 + [0] * 2, [1] * 9], bool)
    fast, exact = (
        impact(x.astype(k), y.astype(k), keep) for x, y, k in ((r, c, dtype), (r, c, np.float64))
    )
    assert fast.positions == exact.positions == 14
    for name in ("kl_mean", "kl_max"):
        one, two = getattr(fast, name), getattr(exact, name)
        assert one == pytest.approx(two, rel=1e-4, abs=2e-15), name
    for one, two in zip(fast.examples, exact.examples, strict=True):
        assert (one.index, one.reference, one.candidate, one.tie) == (
            two.index,
            two.reference,
            two.candidate,
            two.tie,
        )
        assert one.gap == pytest.approx(two.gap, rel=1e-12)
    assert (fast.flips, fast.ties) == (exact.flips, exact.ties)
    if dtype == "float32":  # among equals, which are common in half precision, any is one of five
        assert fast.top5_overlap == exact.top5_overlap


def test_a_shift_of_all_float32_logits_is_no_divergence():
    r, _ = vocabulary(3.0, 0.0)
    found = impact(r, r + np.float32(2**-11))
    assert found.kl_max == pytest.approx(0, abs=1e-12)


def test_a_flip_among_close_float32_logits_is_seen():
    r, c = vocabulary(1.0, 1e-7)
    r[0, 1, 17], r[0, 1, 4000] = 9.0, 9.0005
    c[0, 1, 17], c[0, 1, 4000] = 9.0004, 9.0
    found = impact(r, c, tolerance=Tolerance(1e-3))
    assert (found.flips, found.ties) == (1, 1)
    assert (found.examples[0].reference, found.examples[0].candidate) == (4000, 17)


def test_identical_and_nonfinite_float32_rows():
    r, _ = vocabulary(1.0, 0.0)
    assert impact(r, r.copy()).kl_max == 0
    r[0, 0, 3], r[0, 1, 4] = np.nan, np.inf
    assert impact(r, r.copy()).positions == 1
