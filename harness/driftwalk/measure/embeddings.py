"""What a difference does to embeddings: directions, and who is whose nearest neighbour.

    cosine        of each row of the candidate's with the same row of the reference's
    neighbours    the other rows of the batch, by cosine, the nearest first
    tie           two neighbours whose cosines lie no farther apart than twice what an element may
                  be off by, over the lengths of the rows

An embedding has no argmax worth telling; what is decided with it is who is near whom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, Float64
from .constants import FEWEST_NEIGHBOURS

_MOST_MOVED = 32


@dataclass(frozen=True)
class Moved:
    """One row whose nearest neighbour is another one."""

    row: int
    reference: int
    candidate: int
    gap: float
    """How much nearer, in cosine, the reference has its own choice than the candidate's."""
    tie: bool
    """Honest noise could make either the nearest."""


@dataclass(frozen=True)
class Embedding:
    """One output that is used for its direction."""

    output: str
    """As the model calls it."""
    rows: int
    pooled: bool
    """Whether a row is the mean over the positions that count."""
    cosine_mean: float
    cosine_min: float
    compared: bool
    """Whether there are rows enough to have an order among neighbours."""
    moved: int
    """Rows whose nearest neighbour is another one."""
    ties: int
    """Those of them that stood at a tie."""
    reordered: int
    """Rows whose neighbours come in another order, the nearest or any other."""
    examples: tuple[Moved, ...]


def embedding(
    output: str, reference: Array, candidate: Array, keep: Array | None, room: float
) -> Embedding | None:
    """Compare two batches of embeddings; None where rows are not finite, or there are none.

    `room` is what an element may be off by.
    """
    pooled = reference.ndim == 3
    ours, theirs = (_rows(side, keep) for side in (reference, candidate))
    if not ours.size or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return None
    noise = room / np.maximum(np.linalg.norm(ours, axis=1), np.finfo(np.float64).tiny)
    ours, theirs = _unit(ours), _unit(theirs)
    cosines = np.clip((ours * theirs).sum(1), -1, 1)
    count = len(ours)
    near, far = ours @ ours.T, theirs @ theirs.T
    orders = (
        np.array([_order(side) for side in (near, far)]) if count >= FEWEST_NEIGHBOURS else None
    )
    moved: list[Moved] = []
    reordered = 0
    if orders is not None:
        reordered = int((orders[0] != orders[1]).any(1).sum())
        for row in np.flatnonzero(orders[0][:, 0] != orders[1][:, 0]).tolist():
            own, other = int(orders[0][row, 0]), int(orders[1][row, 0])
            gap = float(near[row, own] - near[row, other])
            tie = gap <= 2 * float(noise[row] + max(noise[own], noise[other]))
            moved.append(Moved(row, own, other, gap, tie))
    return Embedding(
        output=output,
        rows=count,
        pooled=pooled,
        cosine_mean=float(cosines.mean()),
        cosine_min=float(cosines.min()),
        compared=orders is not None,
        moved=len(moved),
        ties=sum(one.tie for one in moved),
        reordered=reordered,
        examples=tuple(sorted(moved, key=lambda one: -one.gap)[:_MOST_MOVED]),
    )


def _rows(state: Array, keep: Array | None) -> Float64:
    """One vector a row: the mean over positions that count; what has no positions, flat."""
    wide: Float64 = state.astype(np.float64)
    if wide.ndim != 3:
        return wide.reshape(len(wide), -1)
    if keep is None or keep.shape != wide.shape[:2]:
        return np.asarray(wide.mean(1), np.float64)
    weights = (keep != 0).astype(np.float64)[:, :, None]
    mean: Float64 = np.where(weights > 0, wide, 0.0).sum(1) / np.maximum(weights.sum(1), 1)
    return mean


def _unit(rows: Float64) -> Float64:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Float64 = rows / np.where(norms > 0, norms, 1.0)
    return unit


def _order(similarity: Float64) -> Array:
    """For each row the others, the nearest first; equal ones in the order of the batch."""
    own = similarity.copy()
    np.fill_diagonal(own, -np.inf)
    order: Array = np.argsort(-own, axis=1, kind="stable")[:, :-1]
    return order
