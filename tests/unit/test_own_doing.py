"""What a node introduced: floats by noise, whole numbers by the boundary they were rounded at."""

from __future__ import annotations

import numpy as np
import pytest

from driftwalk.dtypes import FORMATS
from driftwalk.graphs.own_doing import Grid, Replayed, noise_of, own_doing
from driftwalk.judge.constants import NODE_NOISES

FLOOR = noise_of(FORMATS["fp32"])

VALUES = np.array([0.2, 1.4999999, -3.7, 100.0, 260.0], dtype=np.float32)
WHOLE = np.array([0, 1, 0, 100, 255], dtype=np.uint8)


def rounded(candidate: list[int], values: np.ndarray = VALUES) -> Replayed:
    grid = Grid(np.float32(1), np.uint8(0), 1, 0, 255, (values,))
    given = np.array(candidate, dtype=np.uint8)
    return Replayed("q", WHOLE, given, WHOLE, (), grid)


@pytest.mark.parametrize(
    ("candidate", "guilty"),
    [
        ([0, 1, 0, 100, 255], False),
        ([0, 2, 0, 100, 255], False),  # 1.4999999 lies on the boundary
        ([1, 1, 0, 100, 255], True),  # 0.2 does not
        ([0, 3, 0, 100, 255], True),
        ([0, 1, 1, 100, 255], True),  # below the range there is only its end
        ([0, 1, 0, 100, 254], True),
        ([0, 1, 0, 101, 255], True),
    ],
)
def test_only_at_a_boundary(candidate: list[int], guilty: bool) -> None:
    assert own_doing(rounded(candidate)).guilty is guilty


def test_without_the_boundary_a_few_may_be_one_off() -> None:
    made = np.zeros(5000, dtype=np.uint8)
    for flips, by, guilty in ((3, 1, False), (50, 1, True), (1, 2, True)):
        given = made.copy()
        given[:flips] = by
        assert own_doing(Replayed("q", made, given, made, (), rounds=True)).guilty is guilty
        assert own_doing(Replayed("flag", made, given, made, ())).guilty
    wide = made.astype(np.int64)
    assert own_doing(Replayed("choice", wide, wide + (np.arange(5000) == 3), wide, ())).guilty


def test_floats_by_noise_and_by_roundoff() -> None:
    made = np.ones(100, dtype=np.float32)
    noise = np.float32(1e-4) * np.where(np.arange(100) % 2, 1, -1).astype(np.float32)

    def off(by: float, *draws: np.ndarray) -> bool:
        given = (made.astype(np.float64) + by).astype(np.float32)
        return own_doing(Replayed("t", made, given, made, draws)).guilty

    assert not off(0.9 * FLOOR)
    assert off(2 * FLOOR)
    assert not off(0.9 * NODE_NOISES * 1e-4, made + noise)
    assert off(1.1 * NODE_NOISES * 1e-4, made + noise)


def test_one_element_is_no_average() -> None:
    made = np.ones(10_000, dtype=np.float32)
    given = made.copy()
    given[17] += np.float32(1e-3)
    assert own_doing(Replayed("t", made, given, made, ())).guilty


def test_infinities_must_be_the_same() -> None:
    made = np.array([1, np.inf, -np.inf, np.nan], dtype=np.float32)
    assert not own_doing(Replayed("t", made, made.copy(), made, ())).guilty
    for place, value in ((0, np.nan), (1, 3.0), (2, np.inf), (3, 0.0)):
        given = made.copy()
        given[place] = value
        assert own_doing(Replayed("t", made, given, made, ())).guilty


def test_steps_of_their_own_along_an_axis() -> None:
    grid = Grid(np.array([1.0, 10.0]), np.array([0, 5], dtype=np.int8), 0, -128, 127)
    values = np.array([[3.0, 4.0], [30.0, 2000.0]])
    assert grid.in_range(values).tolist() == [[3.0, 4.0], [8.0, 127.0]]


def test_a_float_that_was_rounded() -> None:
    """Where a float is rounded is all that may be tipped; its range is the reference's."""
    made = np.array([0.3, 0.5, 1.27], dtype=np.float32)
    grid = Grid(np.float32(0.01), np.int8(0), 1, -128, 127, (np.float32([0.302, 0.50499, 2.0]),))
    for given, guilty in (
        ([0.3, 0.51, 1.27], False),
        ([0.31, 0.5, 1.27], True),
        ([0.3, 0.5, 1.28], True),
        ([0.302, 0.505, 1.27], True),  # not rounded at all
    ):
        one = Replayed("d", made, np.array(given, dtype=np.float32), made, (), grid)
        assert own_doing(one).guilty is guilty
