"""Decision impact: what a difference in the logits does to what the model would say."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .dtypes import Array
from .kernels import row_dots, row_sums, scratch
from .tolerance import Tolerance
from .workers import in_threads

TOP = 5
_MOST_FLIPS = 32
_CLOSE = 1e-3
"""Logits of a row that lie no further apart need no second softmax."""
_CLEAR = 0.01
_PARTS = 64


@dataclass(frozen=True)
class Flip:
    """One position where the argmax changed, and how close the reference's race was."""

    index: tuple[int, ...]
    reference: int
    candidate: int
    gap: float
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
    top5_overlap: float
    kl_mean: float
    kl_max: float
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
    classes = reference.shape[-1]
    lead = reference.shape[:-1]
    rows = np.flatnonzero(keep) if keep is not None and keep.shape == lead else None
    numbers = rows if rows is not None else np.arange(int(np.prod(lead)))
    r_all, c_all = reference.reshape(-1, classes), candidate.reshape(-1, classes)

    def look(number: int) -> _Row | None:
        r, c = r_all[number], c_all[number]
        index = tuple(int(i) for i in np.unravel_index(number, lead))
        return _near(r, c) or _any(r, c, index, tolerance, scale)

    with np.errstate(all="ignore"):
        seen = [row for row in in_threads(look, numbers.tolist()) if row is not None]
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


def _any(
    r_raw: Array, c_raw: Array, index: tuple[int, ...], tolerance: Tolerance, scale: float
) -> _Row | None:
    """Any row, in float64; None where a logit is not finite."""
    r, c = r_raw.astype(np.float64), c_raw.astype(np.float64)
    if not (np.isfinite(r).all() and np.isfinite(c).all()):
        return None
    flip = None
    if r.argmax() != c.argmax():
        noise = tolerance.atol * scale + tolerance.rtol * float(np.abs(r).max())
        flip = _flip(index, r, c, noise)
    return _Row(_kl(r, c), _top_overlap(r, c), flip)


def _near(r: Array, c: Array) -> _Row | None:
    """A long row of float32 logits that hardly differ and agree on the first; None for all others.

    With d = c - r, KL(p || q) = log E[exp d] - E[d], both means over p = softmax(r): half the
    variance of d, a sixth of its third moment, and less than d**2 / 12 of that. So only one softmax
    is needed, and float32 will do for its weights: the divergence is right to about 1e-5 of itself.
    """
    if not (r.dtype == c.dtype == np.float32 and r.dtype.isnative and r.size >= 32 * _PARTS):
        return None
    (d, p), flags = scratch.room((2, r.size))
    np.subtract(c, r, out=d)
    widest = max(float(np.maximum.reduce(d)), -float(np.minimum.reduce(d)))
    if not widest <= _CLOSE:  # NaN too
        return None
    found = _common_top(r, c, widest, flags[: r.size])
    if found is None:
        return None
    overlap, top = found
    if not widest:
        return _Row(0.0, 1.0, None) if math.isfinite(_total(r)) else None
    np.exp(np.subtract(r, np.float32(top), out=p), out=p)
    total = _total(p)
    p *= d
    first, second = _total(p) / total, _product(p, d) / total
    variance = second - first * first
    if not variance > _CLEAR * second:  # all logits moved alike, and the rest drowns in that
        return None
    third = 0.0
    if widest > _CLOSE / 100:
        third = _product(p, np.multiply(d, d, out=d)) / total
        third += 2 * first**3 - 3 * first * second
    kl = variance / 2 + third / 6
    return _Row(max(0.0, kl), overlap, None) if math.isfinite(kl) else None


def _common_top(
    r: Array, c: Array, widest: float, flags: NDArray[np.bool_]
) -> tuple[float, float] | None:
    """Share of common top entries, and the largest logit; None where the first differs.

    The largest of some parts of the row say what the fifth largest is at least; no element that is
    more than twice the largest difference below that can be among the first five of either side.
    """
    whole = r.size - r.size % _PARTS
    heads = np.append(np.maximum.reduce(r[:whole].reshape(_PARTS, -1), axis=0), r[whole:])
    least = float(np.partition(heads, -TOP)[-TOP])
    edge = np.float32(least - 2 * widest - 1e-6 * abs(least))
    at = np.greater_equal(r, edge, out=flags).nonzero()[0]
    best_r, best_c = (at[np.argsort(-x[at], kind="stable")[:TOP]] for x in (r, c))
    if best_r[0] != best_c[0]:
        return None
    common = len({*best_r.tolist()} & {*best_c.tolist()})
    return common / TOP, float(r[best_r[0]])


def _total(x: Array) -> float:
    return float(row_sums(x[None])[0])


def _product(x: Array, y: Array) -> float:
    return float(row_dots(x[None], y[None])[0])


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
