"""Decision impact: what a difference in the logits does to what the model would say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..dtypes import Array, Float64
from ..jsonable import Share, Size, Sparse
from ..tolerance import Tolerance
from ..workers import in_threads
from .constants import RANKED_LOGITS
from .fused import CHOICE, decide

_MOST_FLIPS = 32


@dataclass(frozen=True)
class Flip:
    """One position where the argmax changed, and how close the reference's race was."""

    index: tuple[int, ...]
    reference: int
    candidate: int
    gap: Size
    """The reference's top-1 minus its top-2 logit."""
    tie: bool
    """The reference puts the candidate's choice within twice the tolerance of its own: honest noise
    could flip it."""


@dataclass(frozen=True)
class Decisions:
    """Argmax flips, top-5 overlap and KL divergence over the positions that count."""

    positions: int
    flips: int
    ties: int
    top5_overlap: Share
    kl_mean: Size
    kl_max: Size
    examples: tuple[Flip, ...]
    close: Sparse[int | None] = None
    """Positions at which the reference's top choice leads by no more than honest noise may flip."""
    margin: Sparse[Size | None] = None
    """That lead in the middle position, over what may flip it: a tie is at most 1."""


def decision_impact(
    reference: Array, candidate: Array, keep: Array | None, tolerance: Tolerance, scale: float
) -> Decisions | None:
    """Compare two sets of logits position by position; None where there is nothing to decide."""
    if reference.shape != candidate.shape or reference.ndim < 2 or reference.shape[-1] < 2:
        return None
    classes, lead = reference.shape[-1], reference.shape[:-1]
    rows = np.arange(math.prod(lead))
    if keep is not None and keep.shape == lead:
        rows = np.flatnonzero(keep)
    r_all, c_all = reference.reshape(-1, classes), candidate.reshape(-1, classes)
    choices = decide(r_all, c_all, rows)
    if choices is None:
        choices = _decided(r_all, c_all, rows)
    finite = choices["finite"] > 0
    if not finite.any():
        return None
    rows, choices = rows[finite], choices[finite]
    with np.errstate(over="ignore"):  # float64 logits may lie that far apart
        leads = choices["first"] - choices["second"]
    room = 2 * _noise(r_all, rows, tolerance, scale)
    flips = []
    for at in np.flatnonzero(choices["best"][:, 0] != choices["best"][:, 1]):
        index = tuple(int(i) for i in np.unravel_index(rows[at], lead))
        first, second, theirs = (float(choices[at][name]) for name in ("first", "second", "theirs"))
        best, chosen = choices[at]["best"].tolist()
        tie = first - theirs <= float(room[at])
        flips.append(Flip(index, best, chosen, first - second, tie))
    return Decisions(
        positions=len(choices),
        flips=len(flips),
        ties=sum(flip.tie for flip in flips),
        top5_overlap=float(np.mean(choices["overlap"])),
        kl_mean=float(np.mean(choices["kl"])),
        kl_max=float(np.max(choices["kl"])),
        examples=tuple(sorted(flips, key=lambda flip: -flip.gap)[:_MOST_FLIPS]),
        close=int((leads <= room).sum()),
        margin=float(np.median(leads / room)) if (room > 0).all() else None,
    )


def _noise(logits: Array, rows: Array, tolerance: Tolerance, scale: float) -> Float64:
    """What a logit of each row may be off."""
    even = np.full(len(rows), tolerance.atol * scale)
    if not tolerance.rtol:
        return even
    largest = np.array([float(np.abs(logits[row]).max()) for row in rows])
    return even + tolerance.rtol * largest


def _decided(reference: Array, candidate: Array, rows: Array) -> Array:
    """What rows of logits of any dtype decide, in numpy: as compiled code tells it (fused.py)."""
    choices = np.zeros(len(rows), CHOICE)

    def look(at: int) -> None:
        r, c = (side[rows[at]].astype(np.float64) for side in (reference, candidate))
        if np.isfinite(r).all() and np.isfinite(c).all():
            second, first = np.partition(r, -2)[-2:]
            best = r.argmax(), c.argmax()
            choices[at] = (_kl(r, c), _top_overlap(r, c), first, second, r[best[1]], best, 1)

    with np.errstate(all="ignore"):
        in_threads(look, range(len(rows)))
    return choices


def _top_overlap(r: Float64, c: Float64) -> float:
    top = min(RANKED_LOGITS, r.size)
    best_r, best_c = np.argpartition(r, -top)[-top:], np.argpartition(c, -top)[-top:]
    return float(np.intersect1d(best_r, best_c).size / top)


def _kl(r: Float64, c: Float64) -> float:
    """KL(reference || candidate) of the softmaxes, never below zero by rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        log_p, log_q = _log_softmax(r), _log_softmax(c)
        p = np.exp(log_p)
        # 0 * log 0 = 0, also where float64 logits lie so far apart that the log is -inf.
        return max(0.0, float(np.sum(np.where(p > 0, p * (log_p - log_q), 0.0))))


def _log_softmax(x: Float64) -> Float64:
    shifted: Float64 = x - x.max()
    log_sum: np.float64 = np.log(np.exp(shifted).sum())
    return shifted - log_sum
