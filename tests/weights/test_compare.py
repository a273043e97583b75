"""Two arrays that should be one weight: each kind of difference is named, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import FORMATS
from driftwalk.tasks.weights import blocks
from driftwalk.tasks.weights.compare import compare
from driftwalk.tasks.weights.order import in_words
from driftwalk_reports.weight_words import what_became

every = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(2, 9)


def matrix(seed: int, rows: int, columns: int, dtype: str = "fp32") -> Any:
    made = np.random.default_rng(seed).standard_normal((rows, columns))
    return made.astype(FORMATS[dtype].dtype)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matrix of a test is several blocks."""
    monkeypatch.setattr(blocks, "ENTRIES", 7)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (5,), (4, 6), (2, 3, 4)])
def test_what_is_equal_is_the_same_whatever_its_shape(shape: tuple[int, ...], dtype: str) -> None:
    a = np.random.default_rng(0).standard_normal(shape).astype(FORMATS[dtype].dtype)
    change = compare(a, a.copy())
    assert (change.verdict, change.ok, change.rel_l2, change.worst) == ("same", True, 0.0, None)


@every
@given(seeds, sizes, sizes, st.data())
def test_one_entry(seed: int, rows: int, columns: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    a = matrix(seed, rows, columns)
    b = a.copy()
    b[at] += np.float32(0.5)
    change = compare(a, b)
    assert change.verdict == "differs"
    assert change.worst is not None
    assert change.worst.index == at
    assert (change.differing, change.total) == (1, rows * columns)
    assert change.place == f"[{at[0]}, {at[1]}]"
    wide = a.astype(np.float64)
    exact = np.linalg.norm(b.astype(np.float64) - wide) / np.linalg.norm(wide)
    assert change.rel_l2 == pytest.approx(exact, rel=1e-12)
    assert change.max_abs == pytest.approx(0.5, rel=1e-6)
    assert what_became(change).startswith(f"one entry [{at[0]}, {at[1]}] is off by 0.5")


@every
@given(seeds, st.integers(3, 9), st.integers(3, 9), st.booleans(), st.data())
def test_one_row_or_column(
    seed: int, rows: int, columns: int, row: bool, data: st.DataObject
) -> None:
    a = matrix(seed, rows, columns)
    b, noise = a.copy(), matrix(seed + 1, rows, columns)
    at = data.draw(st.integers(0, (rows if row else columns) - 1))
    if row:
        b[at] += noise[at]
    else:
        b[:, at] += noise[:, at]
    change = compare(a, b)
    assert change.verdict == "differs"
    assert change.place == (f"[{at}, :]" if row else f"[:, {at}]")
    assert (change.factor, change.offset) == (None, None)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@every
@given(seeds, st.sampled_from([-1.0, 0.0, 0.125, 1.05, 3.0]), st.booleans())
def test_a_factor_and_a_sign(dtype: str, seed: int, factor: float, one_row: bool) -> None:
    a = matrix(seed, 6, 5, dtype)
    b = a.copy()
    part = np.s_[2:3] if one_row else np.s_[:]
    b[part] = (a[part].astype(np.float64) * factor).astype(a.dtype)
    change = compare(a, b)
    assert change.verdict == "differs"
    assert change.factor == pytest.approx(factor, rel=8 * FORMATS[dtype].roundoff)
    assert change.place == ("[2, :]" if one_row else "")
    words = {-1.0: "of the other sign", 0.0: "are zero", 0.125: "0.125 times as large"}
    assert words.get(factor, "times as large") in what_became(change)


@every
@given(seeds, st.sampled_from([-2.0, 0.25, 100.0]))
def test_an_offset(seed: int, offset: float) -> None:
    a = matrix(seed, 6, 5)
    change = compare(a, (a.astype(np.float64) + offset).astype(np.float32))
    assert change.offset == pytest.approx(offset, rel=1e-3)
    assert change.factor is None


def test_noise_is_neither_a_factor_nor_an_offset() -> None:
    a = matrix(0, 6, 5)
    change = compare(a, a + 1e-3 * matrix(1, 6, 5))
    assert (change.verdict, change.place, change.factor, change.offset) == (
        "differs",
        "",
        None,
        None,
    )
    assert change.differing == 30
    assert "30 of 30 entries differ" in what_became(change)


@every
@given(seeds, sizes, sizes)
def test_transposed(seed: int, rows: int, columns: int) -> None:
    a = matrix(seed, rows, columns)
    change = compare(a, np.ascontiguousarray(a.T))
    assert (change.verdict, change.ok, change.turned) == ("transposed", False, True)


def test_transposed_and_off_in_one_entry() -> None:
    a = matrix(0, 4, 6)
    b = np.ascontiguousarray(a.T)
    b[5, 2] += 1
    change = compare(a, b)
    assert (change.verdict, change.turned, change.place) == ("differs", True, "[2, 5]")


@every
@given(seeds, st.permutations(range(6)), st.booleans())
def test_permuted(seed: int, order: list[int], rows: bool) -> None:
    a = matrix(seed, 6, 6)
    change = compare(a, a[order] if rows else a[:, order])
    if order == sorted(order):
        assert change.verdict == "same"
    else:
        assert (change.verdict, change.axis) == ("permuted", "rows" if rows else "columns")
        assert not change.ok


def heads(n: int, size: int) -> Any:
    return np.arange(n).reshape(-1, size)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (np.arange(12)[::-1], "reversed"),
        (np.array([0, 3, 2, 1, 4, 5]), "1 and 3 swapped"),
        (np.roll(np.arange(8), 2), "shifted by 2"),
        (heads(12, 6).T.ravel(), "halves interleaved, as in rotary conversions"),
        (np.arange(24).reshape(3, 2, 4).swapaxes(1, 2).ravel(), "halves interleaved in each 8"),
        (np.arange(24).reshape(3, 4, 2).swapaxes(1, 2).ravel(), "pairs taken apart into halves"),
        (np.arange(36).reshape(3, 4, 3).swapaxes(0, 1).ravel(), "pieces of 3 dealt as 4 x 3"),
        (heads(16, 4)[[0, 3, 2, 1]].ravel(), "blocks 1 and 3 of 4 each swapped, as heads are"),
        (np.array([2, 0, 4, 1, 6, 5, 3]), "6 of 7 in another order"),
    ],
)
def test_a_simple_permutation_has_words(order: Any, words: str) -> None:
    assert words in in_words(order)
    a = matrix(0, len(order), 3)
    change = compare(a, a[order])
    assert change.order == in_words(order), "b[i] is a[order[i]]"
    assert change.order in what_became(change)


def test_a_permuted_bias() -> None:
    a = np.arange(1.0, 9.0, dtype=np.float32)
    assert compare(a, a[::-1].copy()).order == "reversed"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@every
@given(seeds, st.booleans())
def test_rounded_numbers_are_the_same_numbers(dtype: str, seed: int, back: bool) -> None:
    a = matrix(seed, 5, 7)
    b = a.astype(FORMATS[dtype].dtype)
    change = compare(b, a) if back else compare(a, b)
    assert (change.verdict, change.ok) == ("cast", True)
    assert "the same numbers in" in what_became(change)


@every
@given(seeds)
def test_two_roundings_of_the_same_numbers_are_the_same(seed: int) -> None:
    a = matrix(seed, 9, 9)
    change = compare(a.astype(np.float16), a.astype(FORMATS["bf16"].dtype))
    assert change.verdict == "cast"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_more_than_rounding_is_a_difference(dtype: str) -> None:
    """Cut off, not rounded; and one entry of the rounded ones changed."""
    a = matrix(0, 30, 7)
    bits = a.view(np.uint32) & np.uint32(0xFFFF0000)
    if dtype == "bf16":
        assert compare(a, bits.view(np.float32).astype(FORMATS["bf16"].dtype)).verdict == "differs"
    b = a.astype(FORMATS[dtype].dtype)
    b[3, 4] *= FORMATS[dtype].dtype.type(1.25)
    assert compare(a, b).place == "[3, 4]"


def test_a_permuted_and_rounded_matrix() -> None:
    a = matrix(0, 8, 5)
    change = compare(a, a[::-1].astype(FORMATS["bf16"].dtype))
    assert (change.verdict, change.order) == ("permuted", "reversed")


def test_nan_equals_nan_and_nothing_else() -> None:
    a = matrix(0, 4, 5)
    a[1, 2] = np.nan
    assert compare(a, a.copy()).verdict == "same"
    assert compare(a, a.astype(np.float16)).verdict == "cast"
    for bad in (np.nan, np.inf):
        b = a.copy()
        b[3, 4] = bad
        change = compare(a, b)
        assert change.verdict == "differs"
        assert change.worst is not None
        assert change.worst.index == (3, 4)
        assert change.max_abs == change.rel_l2 == math.inf
        assert "entry [3, 4] is " in what_became(change)


def test_shapes() -> None:
    a = matrix(0, 4, 6)
    assert compare(a, a[:3]).verdict == "shape"
    assert "its shape is [3, 6], not [4, 6]" in what_became(compare(a, a[:3]))
    assert compare(a, a.reshape(4, 6, 1)).verdict == "same", "an axis of one entry is no difference"
    assert compare(a, a.reshape(24)).verdict == "shape"


def test_a_scalar_that_differs() -> None:
    change = compare(np.float32(1).reshape(()), np.float32(2).reshape(()))
    assert change.worst is not None
    assert (change.verdict, change.worst.index) == ("differs", ())
    assert what_became(change) == "its one entry is off by 1 (2, not 1)"


def test_whole_numbers_are_compared_exactly() -> None:
    a = np.array([2**62, 5, 7])
    assert compare(a, a + np.array([1, 0, 0])).differing == 1
    assert compare(np.array([True, False]), np.array([True, True])).place == "[1]"


def test_all_zero_weights_that_become_something() -> None:
    change = compare(np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32))
    assert (change.rel_l2, change.max_abs, change.offset) == (math.inf, 1.0, 1.0)
