"""Matching by value, on numbers alone: every arrangement is undone, and nothing is guessed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk_backends.matching import (
    Candidate,
    Hit,
    Pool,
    arrangements,
    clear,
    distinct,
    error,
)

LIMIT = 1e-3


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def candidate(name: str, array: np.ndarray, order: int = 0, root: str = "") -> Candidate:
    return Candidate(name, array, order, root or name)


def off(state: np.ndarray, by: float, seed: int = 9) -> np.ndarray:
    """A tensor at a relative distance from a state."""
    noise = numbers(*state.shape, seed=seed).astype(np.float64)
    far = state + noise * (by * np.linalg.norm(state) / np.linalg.norm(noise))
    return far.astype(np.float64)


def hits(state: np.ndarray, *arrays: np.ndarray) -> list[Hit]:
    return Pool(candidate(str(i), a, i) for i, a in enumerate(arrays)).hits(state)


shapes = st.lists(st.sampled_from([1, 2, 2, 3, 4, 5]), min_size=2, max_size=4)


@settings(max_examples=150, deadline=None)
@given(shape=shapes, data=st.data())
def test_a_state_is_recognised_permuted_and_flattened(shape, data):
    state = numbers(*shape)
    turned = state.transpose(data.draw(st.permutations(range(len(shape)))))
    cut = data.draw(st.integers(0, len(shape) - 1))
    flat = turned.reshape(*turned.shape[:cut], -1)
    kept = turned if data.draw(st.booleans()) else flat
    found = hits(state, np.ascontiguousarray(kept))
    assert found[0].error == 0
    np.testing.assert_array_equal(found[0].array, state)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, other=shapes)
def test_an_arrangement_always_gives_the_shape_that_was_wanted(shape, other):
    array = numbers(*shape)
    for way in arrangements(shape, other):
        assert way.of(array).shape == tuple(other)
        assert sorted(way.of(array).ravel()) == sorted(array.ravel())
    if np.prod(shape) != np.prod(other):
        assert not arrangements(shape, other)


def test_a_tensor_that_lies_as_the_state_does_is_taken_as_it_is():
    assert arrangements((2, 3, 4), (2, 3, 4))[0].rank == 0
    assert arrangements((2, 1, 3, 4), (2, 3, 4))[0].rank == 1
    assert arrangements((6, 4), (2, 3, 4))[0].rank == 2
    assert arrangements((3, 2, 4), (2, 3, 4))[0].rank == 2
    assert arrangements((3 * 2, 4), (2, 3, 4))[-1].rank == 3


@settings(max_examples=100, deadline=None)
@given(best=st.floats(1e-6, 1e-4), times=st.floats(1.0, 20.0))
def test_the_best_is_taken_only_with_a_clear_margin(best, times):
    state = numbers(2, 5, 16)
    found = clear(hits(state, off(state, best * times, 1), off(state, best, 2)), LIMIT)
    if times > 4.05:
        assert found is not None
        assert found.candidate.name == "1"
    elif times < 3.95:
        assert found is None, "two tensors as close as this cannot be told apart"


def test_copies_are_one_tensor_and_no_rivals():
    state = numbers(2, 5, 16)
    near = off(state, 1e-6).astype(np.float32)
    found = clear(hits(state, near.reshape(10, 16), near, near.copy(), off(state, 0.5, 3)), LIMIT)
    assert found is not None
    assert found.candidate.name == "1", "of copies the one that needs no rearranging"
    less = off(state, 3e-4).astype(np.float32)
    cast = [candidate("a", less, 0), candidate("b", less.astype(np.float16), 1, root="a")]
    assert clear(Pool(cast).hits(state), LIMIT) is not None, "a cast is no rival either"
    strangers = [candidate("a", less, 0), candidate("b", less.astype(np.float16), 1)]
    assert clear(Pool(strangers).hits(state), LIMIT) is None
    assert len(distinct(Pool(strangers).hits(state))) == 2


def test_what_is_far_off_is_no_match_even_alone():
    state = numbers(2, 5, 16)
    assert clear(hits(state, off(state, 2 * LIMIT)), LIMIT) is None
    assert clear(hits(state, off(state, LIMIT / 2)), LIMIT) is not None
    assert clear([], LIMIT) is None


def test_padding_does_not_count():
    state, keep = numbers(2, 5, 16), np.ones((2, 5), dtype=bool)
    keep[0, 3:] = False
    wild = state.copy()
    wild[0, 3:] = 100
    pool = Pool([candidate("a", wild)])
    assert pool.hits(state, keep)[0].error == 0
    assert pool.hits(state)[0].error > 1


def test_nan_is_close_to_nothing_but_its_like():
    state = numbers(2, 5, 16)
    broken = state.copy()
    broken[0, 0, 0] = np.nan
    assert error(state, broken) == np.inf
    assert error(broken, broken) == 0
    assert error(np.full_like(state, np.nan), np.full_like(state, np.nan)) == np.inf
    assert error(np.zeros(3), np.zeros(3)) == 0
    assert error(np.zeros(3), np.ones(3)) == np.inf
    assert [hit.candidate.name for hit in hits(state, broken, off(state, 0.9))] == ["1", "0"]


@pytest.mark.parametrize("size", [64, 1 << 16])
def test_a_first_look_at_some_elements_misses_nothing(size: int) -> None:
    state = numbers(4, 16, size // 16)
    arrays = [off(state, 0.3 + i / 100, i) for i in range(60)]
    arrays[41] = off(state, 1e-6)
    assert hits(state, *arrays)[0].candidate.name == "41"
