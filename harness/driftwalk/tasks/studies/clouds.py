"""Clouds of sentences, one row each: how alike two of them are, and what they look like.

All numbers compare shapes: moving, turning or scaling a cloud as a whole changes neither linear CKA
nor the Procrustes distance, nor who is near whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dtypes import Array
from ...errors import BackendUnavailable, UsageError

POOLINGS = ("last", "cls", "mean", "max")
PROJECTIONS = ("pca", "umap")


def check_name(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise UsageError(f"Unknown {what} {name!r}. Known: {', '.join(names)}.")


def pool(state: Array, keep: Array, how: str) -> Array:
    """[row, token, value] to [row, value] in float64; `keep` tells real tokens from padding.

    `last` and `cls` are the last and the first real token, whichever side is padded.
    """
    check_name("pooling", how, POOLINGS)
    values = state.astype(np.float64)
    rows = np.arange(len(values))
    if how == "cls":
        return np.asarray(values[rows, keep.argmax(axis=1)])
    if how == "last":
        return np.asarray(values[rows, keep.shape[1] - 1 - keep[:, ::-1].argmax(axis=1)])
    inside = keep[:, :, None]
    if how == "max":
        return np.asarray(np.where(inside, values, -np.inf).max(axis=1))
    # Where padding holds NaN or Inf, zero times it would not be zero.
    return np.asarray(np.where(inside, values, 0.0).sum(axis=1) / keep.sum(axis=1)[:, None])


# ---- numbers that need no picture ----


def distances(points: Array) -> Array:
    """Euclidean, each to each; by differences, so that equal rows are exactly 0 apart."""
    return np.stack([np.sqrt(np.square(points - row).sum(axis=1)) for row in points])


def neighbours(points: Array, k: int) -> Array:
    """The k nearest of each row, itself left out; of equals, the first."""
    apart = distances(points)
    np.fill_diagonal(apart, np.inf)
    return np.asarray(np.argsort(apart, axis=1, kind="stable")[:, :k])


def knn_overlap(one: Array, other: Array, k: int) -> float:
    """The part of each row's k nearest neighbours that are the same in both clouds."""
    pairs = zip(neighbours(one, k), neighbours(other, k), strict=True)
    return float(np.mean([len(np.intersect1d(a, b)) / k for a, b in pairs]))


def linear_cka(one: Array, other: Array) -> float:
    """Centred kernel alignment: 1 where the similarities within both clouds are proportional."""
    a, b = (unit @ unit.T for unit in (_unit(one), _unit(other)))
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    if scale == 0:  # a cloud that is one point has no shape
        return 1.0 if not a.any() and not b.any() else 0.0
    return float(min(1.0, (a * b).sum() / scale))


def _unit(points: Array) -> Array:
    """Centred, and of length one as a whole."""
    centred = points - points.mean(axis=0)
    size = np.linalg.norm(centred)
    return np.asarray(centred / size if size > 0 else centred)


def procrustes(one: Array, other: Array) -> float:
    """What is left between both clouds after the best shift, turn and scale: 0 to 1.

    Worked out in the span of the rows, and from the residue itself: one minus a number near one
    would lose half of all digits.
    """
    a, b = _unit(one), _unit(other)
    if not a.any() or not b.any():
        return 0.0 if not a.any() and not b.any() else 1.0
    ra, rb = (np.asarray(np.linalg.qr(points.T, mode="r")) for points in (a, b))
    left, sizes, right = np.linalg.svd(ra @ rb.T)
    turn = right.T @ left.T if left.shape == right.shape else right.T[:, : len(left)] @ left.T
    return float(np.linalg.norm(ra.T - sizes.sum() * (rb.T @ turn)))


def displacement(one: Array, other: Array) -> float | None:
    """How far a row has moved, in units of how far rows lie from their centre (both as RMS).

    None where all rows are the same, and there is no such unit.
    """
    spread = float(np.linalg.norm(one - one.mean(axis=0)))
    # A cloud of equal rows is not exactly zero wide: its mean is rounded.
    if spread <= 1e-12 * float(np.linalg.norm(one)):
        return None
    return float(np.linalg.norm(one - other)) / spread


def separation(points: Array, labels: Sequence[str]) -> float | None:
    """The mean silhouette: 1 where classes are tight and far apart, 0 where they blend.

    None where there is only one class. A class of one sentence counts 0, as is usual.
    """
    names = sorted(set(labels))
    if len(names) < 2:
        return None
    member = np.array([[label == name for name in names] for label in labels])
    counts = member.sum(axis=0)
    totals = distances(points) @ member
    own = member.argmax(axis=1)
    rows = np.arange(len(points))
    alone = counts[own] == 1
    within = totals[rows, own] / np.where(alone, 1, counts[own] - 1)
    means = totals / counts
    means[rows, own] = np.inf
    nearest = means.min(axis=1)
    larger = np.maximum(within, nearest)
    score = np.where(larger > 0, (nearest - within) / np.where(larger > 0, larger, 1), 0.0)
    return float(np.where(alone, 0.0, score).mean())


# ---- two dimensions out of many, for looking ----


@dataclass(frozen=True, eq=False)
class Projected:
    """Both clouds in the reference's plane."""

    reference: Array
    candidate: Array | None
    explained: tuple[float, float] | None
    """The part of the reference's variance that each axis shows; none of UMAP's does."""


def project(how: str, reference: Array, candidate: Array | None, seed: int = 0) -> Projected:
    """The plane is the reference's alone, so that what moved in it is the candidate."""
    check_name("projection", how, PROJECTIONS)
    return _pca(reference, candidate) if how == "pca" else _umap(reference, candidate, seed)


def _pca(reference: Array, candidate: Array | None) -> Projected:
    centre = reference.mean(axis=0)
    _, sizes, axes = np.linalg.svd(reference - centre, full_matrices=False)
    plane = np.zeros((2, reference.shape[1]))
    plane[: len(axes[:2])] = axes[:2]
    # The sign of an axis is free: its largest part is made positive, so that a plane is one plane.
    largest = np.abs(plane).argmax(axis=1)
    plane *= np.where(plane[np.arange(2), largest] < 0, -1.0, 1.0)[:, None]
    power = np.zeros(2)
    power[: len(sizes[:2])] = np.square(sizes[:2])
    whole = float(np.square(sizes).sum()) or 1.0
    return Projected(
        (reference - centre) @ plane.T,
        None if candidate is None else (candidate - centre) @ plane.T,
        (float(power[0]) / whole, float(power[1]) / whole),
    )


def _umap(reference: Array, candidate: Array | None, seed: int) -> Projected:
    near = min(15, len(reference) - 1)
    fitted = _umap_class()(n_neighbors=near, random_state=seed, n_jobs=1, init="pca").fit(reference)
    moved = None if candidate is None else np.asarray(fitted.transform(candidate), np.float64)
    return Projected(np.asarray(fitted.embedding_, np.float64), moved, None)


def check_projection(how: str) -> None:
    """Refuse, before anything runs, what cannot work here."""
    check_name("projection", how, PROJECTIONS)
    if how == "umap":
        _umap_class()


def _umap_class() -> Any:
    try:
        from umap import UMAP
    except ImportError as error:
        raise BackendUnavailable(
            f"UMAP is not installed here ({error}): pip install 'driftwalk[umap]', "
            "or leave --projection out for PCA, which needs nothing."
        ) from None
    return UMAP
