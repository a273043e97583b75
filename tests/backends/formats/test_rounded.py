"""Stored weights: what they should hold is told from the model's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import Array, Float64
from driftwalk_backends.formats.rounded import (
    Grid,
    RoundedWeight,
    joined,
    split,
    whole_numbers,
)
from driftwalk_backends.formats.rounding import InputRounding

FP8 = Grid("fp8 (e4m3)", -448.0, 448.0, 3, 2.0**-9)
SHAPE = (16, 64)
BLOCKS = st.sampled_from([SHAPE, (1, 64), (1, 32), (16, 1), (8, 16)])
GRIDS = st.sampled_from([whole_numbers(8), whole_numbers(4), whole_numbers(4, False), FP8])


def rounded(weights: Array, grid: Grid, block: tuple[int, ...]) -> RoundedWeight:
    """As any quantiser does it: the numbers of a block reach its extremes."""
    blocks = split(weights, block).astype(np.float64)
    if grid.lowest < 0:
        step = np.abs(blocks).max(1) / grid.highest
        zero = np.zeros_like(step)
    else:
        low, high = np.minimum(blocks.min(1), 0), np.maximum(blocks.max(1), 0)
        step = (high - low) / (grid.highest - grid.lowest)
        zero = np.rint(grid.lowest - low / np.where(step > 0, step, 1))
    some = np.where(step > 0, step, 1.0)[:, None]
    numbers = grid.nearest(blocks / some + zero[:, None])
    counts = tuple(n // b for n, b in zip(weights.shape, block, strict=True))
    whole = joined(numbers, weights.shape, block)
    return RoundedWeight("w", grid, whole, step.reshape(counts), zero.reshape(counts), block)


def drawn(seed: int, tails: bool) -> Float64:
    random = np.random.default_rng(seed)
    return random.standard_t(3, SHAPE) if tails else random.standard_normal(SHAPE)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 999), grid=GRIDS, block=BLOCKS, tails=st.booleans())
def test_what_was_rounded_from_the_models_weights_is_taken_as_it_is(
    seed: int, grid: Grid, block: tuple[int, ...], tails: bool
) -> None:
    weights = drawn(seed, tails)
    one = rounded(weights, grid, block)
    found = one.honest(weights)
    assert found.is_right
    assert not found.own_way
    np.testing.assert_array_equal(found.values, one.values)
    spacing = split(np.broadcast_to(grid.spacing(one.numbers), SHAPE), block)
    off = np.abs(split(one.values - weights, block)) / one.step.reshape(-1, 1)
    beyond = split(np.isin(one.numbers, (grid.lowest, grid.highest)), block)
    assert (beyond | (off <= 0.501 * spacing)).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    block=st.sampled_from([(1, 64), (1, 32), (16, 1)]),
    wrong=st.floats(1.02, 2.0) | st.floats(0.5, 0.98),
    place=st.integers(0, 15),
)
def test_a_wrong_step_is_told_and_not_believed(
    seed: int, block: tuple[int, ...], wrong: float, place: int
) -> None:
    weights = drawn(seed, tails=False)
    right = rounded(weights, whole_numbers(8), block)
    step = right.step.copy()
    step.flat[place] *= wrong
    found = replace(right, step=step).honest(weights)
    assert (found.wrong_steps, found.wrong_numbers) == (1, 0)
    assert found.beyond > 2
    assert "of " in found.sentence("w")
    assert "1 with another step or zero" in found.sentence("w")
    np.testing.assert_allclose(found.values, right.values, rtol=0.01, atol=1e-12)


@pytest.mark.parametrize("grid", [whole_numbers(8), whole_numbers(4), whole_numbers(4, False)])
def test_other_numbers_are_told_and_rounded_again(grid: Grid) -> None:
    weights = drawn(0, tails=False)
    right = rounded(weights, grid, (1, 32))
    changes = {
        "two blocks swapped": lambda n: n.__setitem__((slice(3, 5), slice(0, 32)), n[[4, 3], :32]),
        "nibbles swapped": lambda n: n.__setitem__(
            (3, slice(0, 32)), n[3, :32].reshape(-1, 2)[:, ::-1].reshape(-1)
        ),
        "one number far off": lambda n: n.__setitem__((3, 7), grid.lowest),
    }
    for name, change in changes.items():
        numbers = right.numbers.copy()
        change(numbers)
        found = replace(right, numbers=numbers).honest(weights)
        assert not found.is_right, name
        off = np.linalg.norm(found.values - weights) / np.linalg.norm(right.values - weights)
        assert off < 1.1, name


def test_numbers_that_make_up_for_each_other_are_a_way_of_their_own() -> None:
    """As GPTQ rounds: the error of one number is put into the next."""
    weights = drawn(1, tails=False)
    right = rounded(weights, whole_numbers(4), (1, 64))
    left, numbers = np.zeros(16), np.empty(SHAPE)
    for column in range(64):
        wanted = weights[:, column] / right.step[:, 0] + left
        numbers[:, column] = right.grid.nearest(wanted)
        left = 0.9 * (wanted - numbers[:, column])
    one = replace(right, numbers=numbers)
    found = one.honest(weights)
    assert found.own_way
    assert found.is_right
    np.testing.assert_array_equal(found.values, one.values)


def test_a_row_of_zeros_has_no_step_and_is_right() -> None:
    weights = drawn(2, tails=False)
    weights[3] = 0
    one = rounded(weights, whole_numbers(8), (1, 64))
    assert one.step[3, 0] == 0
    assert one.honest(weights).is_right
    step = one.step.copy()
    step[4] = 0  # and this row is not zero
    assert not replace(one, step=step).honest(weights).is_right


def test_steps_that_were_stored_in_bfloat16_are_no_fault() -> None:
    import ml_dtypes

    weights = drawn(3, tails=False)
    one = rounded(weights, whole_numbers(8), (1, 64))
    coarse = replace(one, step=one.step.astype(ml_dtypes.bfloat16).astype(np.float64))
    assert not coarse.honest(weights).is_right, "rounded by other steps than it has"
    found = replace(coarse, slack=2.0**-8).honest(weights)
    assert found.is_right
    assert not found.own_way


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_block_may_be_off_excuses_no_other(turned: bool) -> None:
    weights = drawn(4, tails=False)
    one = rounded(weights, whole_numbers(4), (1, 32))
    step = one.step.copy()
    step[5, 1] *= 1.2
    loose = np.zeros_like(step)

    def is_right(row: int) -> bool:
        slack = loose.copy()
        slack[row, 1] = 10.0
        found = replace(one, step=step, slack=slack)
        own = weights.T if turned else weights
        return (found.turned() if turned else found).honest(own).is_right

    assert is_right(5)
    assert not is_right(6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), block=BLOCKS)
def test_blocks_are_put_back_where_they_came_from(seed: int, block: tuple[int, ...]) -> None:
    weights = drawn(seed, tails=False)
    np.testing.assert_array_equal(joined(split(weights, block), SHAPE, block), weights)
    one = rounded(weights, whole_numbers(8), block)
    np.testing.assert_array_equal(one.turned().values, one.values.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_inputs_are_rounded_alike_in_every_dtype(dtype: torch.dtype) -> None:
    """Numbers on the way have no place in fp16: the rounding's own error is all that is left."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    made = InputRounding(rows=True, symmetric=True).rounded(x)
    assert made.dtype == dtype
    assert float((made.double() - x.double()).norm() / x.double().norm()) < 0.02
