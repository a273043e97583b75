"""Decision impact: what a difference in the logits does to what the model would say."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array
from ..jsonable import Share, Size
from ..tolerance import Tolerance
from ..workers import in_threads
from .fused import decide

TOP = 5
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


@dataclass(frozen=True)
class _Row:
    """One position: its divergence, its common top entries, its flip if there is one."""

    kl: float
    overlap: float
    flip: Flip | None


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
    fast = decide(r_all, c_all, rows)

    noise = _Noise(tolerance.atol * scale, tolerance.rtol)

    def look(at: int) -> _Row | None:
        number = int(rows[at])
        index = tuple(int(i) for i in np.unravel_index(number, lead))
        if fast is not None:
            return _told(fast[at], index, r_all[number], noise)
        return _any(r_all[number], c_all[number], index, noise)

    with np.errstate(all="ignore"):
        seen = [row for row in in_threads(look, range(len(rows))) if row is not None]
    if not seen:
        return None
    flips = [row.flip for row in seen if row.flip is not None]
    kl = [row.kl for row in seen]
    return Decisions(
        positions=len(kl),
        flips=len(flips),
        ties=sum(flip.tie for flip in flips),
        top5_overlap=float(np.mean([row.overlap for row in seen])),
        kl_mean=float(np.mean(kl)),
        kl_max=float(np.max(kl)),
        examples=tuple(sorted(flips, key=lambda flip: -flip.gap)[:_MOST_FLIPS]),
    )


@dataclass(frozen=True)
class _Noise:
    """How far honest arithmetic may move a logit."""

    floor: float
    rtol: float

    def of(self, row: Array) -> float:
        return self.floor + self.rtol * float(np.abs(row).max())


def _told(choice: Any, index: tuple[int, ...], r: Array, noise: _Noise) -> _Row | None:
    """A row of which compiled code told; None where a logit is not finite."""
    if not choice["finite"]:
        return None
    best, chosen = choice["best"].tolist()
    flip = None
    if best != chosen:
        first, second, theirs = (float(choice[name]) for name in ("first", "second", "theirs"))
        flip = Flip(index, best, chosen, first - second, first - theirs <= 2 * noise.of(r))
    return _Row(float(choice["kl"]), float(choice["overlap"]), flip)


def _any(r_raw: Array, c_raw: Array, index: tuple[int, ...], noise: _Noise) -> _Row | None:
    """Any row, in float64; None where a logit is not finite."""
    r, c = r_raw.astype(np.float64), c_raw.astype(np.float64)
    if not (np.isfinite(r).all() and np.isfinite(c).all()):
        return None
    flip = _flip(index, r, c, noise.of(r)) if r.argmax() != c.argmax() else None
    return _Row(_kl(r, c), _top_overlap(r, c), flip)


def _flip(
    index: tuple[int, ...], r: NDArray[np.float64], c: NDArray[np.float64], noise: float
) -> Flip:
    second, first = np.partition(r, -2)[-2:].tolist()
    chosen = int(c.argmax())
    tie = first - float(r[chosen]) <= 2 * noise
    return Flip(index, int(r.argmax()), chosen, first - second, tie)


def _top_overlap(r: NDArray[np.float64], c: NDArray[np.float64]) -> float:
    top = min(TOP, r.size)
    best_r, best_c = np.argpartition(r, -top)[-top:], np.argpartition(c, -top)[-top:]
    return float(np.intersect1d(best_r, best_c).size / top)


def _kl(r: NDArray[np.float64], c: NDArray[np.float64]) -> float:
    """KL(reference || candidate) of the softmaxes, never below zero by rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        log_p, log_q = _log_softmax(r), _log_softmax(c)
        p = np.exp(log_p)
        # 0 * log 0 = 0, also where float64 logits lie so far apart that the log is -inf.
        return max(0.0, float(np.sum(np.where(p > 0, p * (log_p - log_q), 0.0))))


def _log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = x - x.max()
    log_sum: np.float64 = np.log(np.exp(shifted).sum())
    return shifted - log_sum
