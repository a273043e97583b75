"""UMAP, where it is installed: `tox -e umap`."""

from __future__ import annotations

import numpy as np
import pytest

from driftwalk.tasks.studies.clouds import check_projection, project

pytest.importorskip("umap", reason="umap-learn is not installed (tox -e umap)")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_umap_is_the_same_every_time_and_keeps_clusters() -> None:
    random = np.random.default_rng(0)
    points = random.standard_normal((40, 12)) + np.repeat([[0.0], [12.0]], 20, axis=0)
    check_projection("umap")
    drawn, again = (project("umap", points, points + 0.001) for _ in range(2))
    assert drawn.explained is None
    assert drawn.reference.shape == (40, 2)
    assert np.array_equal(drawn.reference, again.reference)
    assert drawn.candidate is not None
    left, right = drawn.reference[:20], drawn.reference[20:]
    between = np.linalg.norm(left.mean(axis=0) - right.mean(axis=0))
    assert between > 4 * left.std(axis=0).max()
    moved = np.linalg.norm(drawn.candidate - drawn.reference, axis=1)
    assert np.median(moved) < between / 4


def test_a_model_end_to_end() -> None:
    pytest.importorskip("torch")
    import driftwalk

    found = driftwalk.geometry(
        "demo:decoder", "cities-incomplete", candidate="emulated:fp16", projection="umap"
    )
    assert found.projection == "umap"
    assert all(layer.explained is None for layer in found.layers)
    assert all(len(layer.candidate or ()) == 50 for layer in found.layers)
