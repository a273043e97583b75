"""Pooling, similarity and projection: what must hold of any cloud, by property."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftwalk.dtypes import Array
from driftwalk.errors import BackendUnavailable, UsageError
from driftwalk.tasks.studies import clouds as similarity
from driftwalk.tasks.studies.clouds import POOLINGS, check_projection, pool, project

seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(6, 30), st.integers(2, 40))
K = 3


def cloud(seed: int, rows: int = 20, width: int = 12) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, width)) + 3.0


def turned(points: Array, seed: int) -> Array:
    """The same shape elsewhere: turned, scaled and moved."""
    random = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(random.standard_normal((points.shape[1],) * 2))
    return np.asarray((points @ turn) * random.uniform(0.1, 10) + random.standard_normal())


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=sizes)
def test_turning_scaling_and_moving_change_nothing(seed: int, size: tuple[int, int]) -> None:
    points = cloud(seed, *size)
    other = turned(points, seed + 1)
    assert similarity.knn_overlap(points, other, K) == 1
    assert similarity.linear_cka(points, other) == pytest.approx(1, abs=1e-9)
    assert similarity.procrustes(points, other) == pytest.approx(0, abs=1e-9)
    labels = ["a", "b"] * (size[0] // 2) + ["a"] * (size[0] % 2)
    before, after = (similarity.separation(x, labels) for x in (points, other))
    assert before == pytest.approx(after, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=sizes)
def test_a_cloud_is_like_itself_exactly(seed: int, size: tuple[int, int]) -> None:
    points = cloud(seed, *size)
    assert similarity.knn_overlap(points, points, K) == 1
    assert similarity.linear_cka(points, points) == 1
    assert similarity.procrustes(points, points) < 1e-12
    assert similarity.displacement(points, points) == 0


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_they_are_symmetric_and_bounded(seed: int) -> None:
    one, other = cloud(seed), cloud(seed + 1)
    for measure in (similarity.linear_cka, similarity.procrustes):
        assert 0 <= measure(one, other) <= 1
        assert measure(one, other) == pytest.approx(measure(other, one), abs=1e-9)
    assert similarity.linear_cka(one, other) < 0.9


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_more_noise_is_less_alike(seed: int) -> None:
    points = cloud(seed, 60, 16)
    noise = np.random.default_rng(seed + 1).standard_normal(points.shape)
    clouds = [points + size * noise for size in (0, 0.02, 0.3, 5.0)]
    cka = [similarity.linear_cka(points, other) for other in clouds]
    kept = [similarity.knn_overlap(points, other, 10) for other in clouds]
    apart = [similarity.procrustes(points, other) for other in clouds]
    assert cka[0] == kept[0] == 1
    assert cka[0] > cka[1] > cka[2] > cka[3]
    assert kept[0] >= kept[1] > kept[2] > kept[3]
    assert apart[0] < apart[1] < apart[2] < apart[3]


def test_known_values() -> None:
    square = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    # Pulled to a rectangle: one singular value against two, (1 + 2)^2 / (2 * 5) of all is kept.
    pulled = square * [1, 2]
    assert similarity.procrustes(square, pulled) == pytest.approx(np.sqrt(1 - 9 / 10))
    assert similarity.linear_cka(square, pulled) == pytest.approx(5 / np.sqrt(2 * 17))
    labels = ["a", "a", "b", "b"]
    far = np.array([[0.0, 0], [0, 1], [9, 0], [9, 1]])
    within, between = 1.0, (9 + np.hypot(9, 1)) / 2
    assert similarity.separation(far, labels) == pytest.approx((between - within) / between)
    assert similarity.separation(far, ["a"] * 4) is None
    assert similarity.separation(far, ["a", "a", "a", "b"]) is not None


def test_nobody_is_their_own_neighbour() -> None:
    line = np.array([[0.0], [1], [3], [7]])
    assert similarity.neighbours(line, 2).tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]


def test_a_cloud_that_is_one_point() -> None:
    point = np.full((5, 3), 2.5)
    assert similarity.linear_cka(point, point) == 1
    assert similarity.procrustes(point, point) == 0
    assert similarity.displacement(point, point + 1) is None
    assert similarity.linear_cka(point, cloud(0, 5, 3)) == 0
    assert project("pca", point, point).reference.tolist() == [[0, 0]] * 5


def test_equal_rows_stay_neighbours() -> None:
    """Many sentences end in the same token: at the first layer they are one point, not noise."""
    points = np.repeat(cloud(0, 4, 8), 5, axis=0)
    rounded = points.astype(np.float16).astype(np.float64)
    assert similarity.knn_overlap(points, rounded, 4) == 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("how", POOLINGS)
def test_pooling_ignores_padding(how: str, side: str) -> None:
    random = np.random.default_rng(0)
    rows = [random.standard_normal((length, 6)) for length in (3, 5, 1)]
    keep = np.zeros((3, 5), dtype=bool)
    padded = np.full((3, 5, 6), np.nan)  # padding may hold anything
    for number, row in enumerate(rows):
        at = slice(5 - len(row), 5) if side == "left" else slice(len(row))
        keep[number, at], padded[number, at] = True, row
    plain = {"last": lambda x: x[-1], "cls": lambda x: x[0], "max": lambda x: x.max(0)}
    wanted = [plain.get(how, lambda x: x.mean(0))(row) for row in rows]
    assert np.allclose(pool(padded, keep, how), wanted, rtol=1e-15, atol=0)


def test_an_unknown_pooling_or_projection() -> None:
    with pytest.raises(UsageError, match="last, cls, mean, max"):
        pool(np.zeros((1, 1, 1)), np.ones((1, 1), dtype=bool), "median")
    with pytest.raises(UsageError, match="pca, umap"):
        check_projection("tsne")


def test_without_umap_it_is_said_how_to_get_it() -> None:
    try:
        import umap  # noqa: F401
    except ImportError:
        with pytest.raises(BackendUnavailable, match=r"driftwalk\[umap\]"):
            check_projection("umap")


@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_pca_keeps_what_it_says_and_always_looks_the_same_way(seed: int) -> None:
    points = cloud(seed, 20, 6)
    drawn = project("pca", points, points + 0.5)
    assert drawn.explained is not None
    assert drawn.candidate is not None
    centred = points - points.mean(axis=0)
    part = np.square(drawn.reference).sum(axis=0) / np.square(centred).sum()
    assert np.allclose(part, drawn.explained)
    assert drawn.explained[0] >= drawn.explained[1]
    # Of the sign two runs might choose, only one is left: order of rows must not turn it.
    again = project("pca", points[::-1], None)
    assert np.allclose(again.reference[::-1], drawn.reference, atol=1e-8)
    # A shift of every sentence by the same is the same in the plane.
    moved = drawn.candidate - drawn.reference
    assert np.allclose(moved, moved[0], atol=1e-9)
