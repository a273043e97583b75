"""How alike two clouds of the same sentences are, in numbers that need no picture.

Rows are sentences. All of these compare shapes: moving, turning or scaling a cloud as a whole
changes neither linear CKA nor the Procrustes distance, nor who is near whom.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...dtypes import Array


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
    a, b = (_gram(points) for points in (one, other))
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    if scale == 0:  # a cloud that is one point has no shape
        return 1.0 if not a.any() and not b.any() else 0.0
    return float(min(1.0, (a * b).sum() / scale))


def _gram(points: Array) -> Array:
    unit = _unit(points)
    return np.asarray(unit @ unit.T)


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
    apart = distances(points)
    member = np.array([[label == name for name in names] for label in labels])
    counts = member.sum(axis=0)
    totals = apart @ member
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
