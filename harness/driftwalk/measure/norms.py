"""The size of a difference, eight ways at once, none of which one token or channel can blind.

A fault in one weight hides from L2, and broad noise hides from the largest element. Rounding noise
is spread over all tokens and channels; a fault has a shape. One wrong output weight is one bad
channel: the RMS of the worst channel sees it. One wrong inner weight adds a pattern of rank one
(some tokens times some channels): the largest singular value sees it, far below the noise's own L2.

Real models have a token (an attention sink) and channels that outweigh all others by four orders of
magnitude: whatever is added up is then the error of these. So tokens and channels are weighed: an
error counts in units of the noise that honest arithmetic makes there (`Weights`). With such units
the order statistics over tokens are those of |c_t - x_t| / |y_t - x_t|: the middle sees broad
faults, the upper tail and the worst token local ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import add, attrgetter, mul

import numpy as np

from ..dtypes import Array, Float64
from ..jsonable import Later, Size
from .constants import MOST_TOKEN_WEIGHT, TIPPED_ONE_IN, UPPER_TAIL_QUANTILE, WIDEST_PATTERN
from .fused_norms import fast_difference, fast_norms
from .spectral import spectral

BLOCK = 1 << 16


@dataclass(frozen=True)
class Norms:
    """The sizes of one difference. The first two are plain and reported; all others are judged."""

    l2: Size
    max_abs: Size
    channel: Size = 0.0
    """RMS of the worst channel (last axis); from here on tokens and channels are weighed."""
    spectral: Later[Size] = 0.0
    """The largest singular value."""
    spread: Later[Size] = 0.0
    """L2, weighed."""
    peak: Later[Size] = 0.0
    """The largest element, weighed."""
    token_middle: Later[Size] = 0.0
    token_upper: Later[Size] = 0.0
    token_worst: Later[Size] = 0.0
    """L2 of one token: of the median one, the one at 95 %, the largest."""
    channel_middle: Later[Size] = 0.0
    """RMS of the median channel."""

    def each(self, function: Callable[..., float], *others: Norms) -> Norms:
        """Norm by norm, of this and of others."""
        return Norms(*map(function, *map(_VALUES, (self, *others))))

    def each_judged(self, function: Callable[..., float], *others: Norms) -> tuple[float, ...]:
        """The same of the norms that are judged, as plain numbers."""
        return tuple(map(function, *(_VALUES(one)[2:] for one in (self, *others))))

    @property
    def in_order(self) -> tuple[float, ...]:
        """All of them, as plain numbers."""
        return tuple(_VALUES(self))

    def scaled(self, factor: float) -> Norms:
        return self.each(lambda own: own * factor)

    def plus(self, other: Norms) -> Norms:
        return self.each(add, other)

    def times(self, factors: Norms) -> Norms:
        return self.each(mul, factors)

    def or_larger(self, other: Norms) -> Norms:
        return self.each(max, other)

    def over(self, allowed: Norms) -> tuple[float, str]:
        """The largest ratio to `allowed` over all judged norms, and which one it is."""
        ratios = self.each_judged(ratio, allowed)
        worst = max(ratios)
        return worst, NORM_NAMES[ratios.index(worst)]


_FIELDS = fields(Norms)
_VALUES = attrgetter(*(f.name for f in _FIELDS))
NORM_NAMES = tuple(f.name for f in _FIELDS[2:])
"""The norms that are judged."""
ZERO = Norms(0.0, 0.0)
FAR = Norms(*[math.inf] * len(_FIELDS))
"""The distance to what is not a number."""


@dataclass(frozen=True, eq=False)
class Weights:
    """What one token (a row that counts) and one channel weigh; 1 for the median one."""

    tokens: Float64
    channels: Float64
    alive: Array | None = None
    """Which tokens are more than zeros, as ReLU leaves them; None: all. What most tokens are is
    asked of these alone: with half of them zeros, the median would be nobody's."""


def ratio(top: float, bottom: float) -> float:
    """top / bottom, with 0/0 = 0, x/0 = inf, and NaN never small."""
    if math.isnan(top) or math.isnan(bottom):
        return math.inf
    if bottom > 0:
        return top / bottom
    return math.inf if top > 0 else 0.0


def norms_of(array: Array, keep: Array | None = None, weights: Weights | None = None) -> Norms:
    """The norms of a state itself: the scale of what rounding does to it.

    Roundoffs of single elements know nothing of one another. Noise of one size in r rows and w
    channels has, of its L2, the part 1/sqrt(r) + 1/sqrt(w) along its strongest pattern.
    """
    size = distance(array, None, keep, weights)
    width = array.shape[-1] if array.ndim else 1
    chosen = _rows(array, keep, width)
    rows = array.size // max(1, width) if chosen is None else len(chosen)
    part = 1 / math.sqrt(rows) + 1 / math.sqrt(width) if rows and width else 0.0
    return replace(size, spectral=size.spread * min(1.0, part))


def distance(
    a: Array,
    b: Array | None,
    keep: Array | None = None,
    weights: Weights | None = None,
    patterns: bool = True,
) -> Norms:
    """The norms of a - b in float64, over the positions that count; NaN anywhere gives inf.

    Where both are the same infinity they differ by nothing. Without `patterns`, half of the work,
    the spectral norm is left 0.
    """
    a_rows, b_rows, rows = _as_rows(a, b, keep)
    width = a_rows.shape[1]
    count = len(a_rows) if rows is None else len(rows)
    if not count or not width:
        return ZERO
    # The difference itself is kept, in float32, for its singular values; logits are too wide.
    kept = patterns and b is not None and width <= WIDEST_PATTERN
    weights = weights or even(count, width)
    every = weights.tokens, weights.channels
    at_once = fast_norms(a_rows, b_rows, rows, *every, weights.alive, UPPER_TAIL_QUANTILE, kept)
    if at_once is not None:
        return Norms(*at_once)
    whole = np.empty((count, width), np.float32) if kept else None
    found, squares = _measured(a_rows, b_rows, rows, weights, whole)
    plain, weighed, most, peaks = found.T
    if not math.isfinite(float(plain.sum())) or np.isnan(most).any():
        return FAR
    tokens, channels = np.sqrt(weighed), np.sqrt(squares / count)
    typical = tokens if weights.alive is None else tokens[weights.alive]
    upper = math.ceil(UPPER_TAIL_QUANTILE * (len(typical) - 1))
    spread, peak = math.sqrt(float(weighed.sum())), float(peaks.max())
    return Norms(
        l2=math.sqrt(float(plain.sum())),
        max_abs=float(most.max()),
        channel=float(channels.max()),
        spectral=spectral(whole, peak, spread),
        spread=spread,
        peak=peak,
        token_middle=_middle(typical),
        token_upper=float(np.partition(typical, upper)[upper]),
        token_worst=float(tokens.max()),
        channel_middle=_middle(channels),
    )


def channel_but_few(a: Array, b: Array, keep: Array | None, weights: Weights) -> float:
    """RMS of the worst channel of a - b without its largest numbers: one in TIPPED_ONE_IN, or more.

    A number that tips over is alone in its channel; a fault of a channel is in all of its tokens.
    """
    a_rows, b_rows, rows = _as_rows(a, b, keep)
    assert b_rows is not None
    count, width = len(a_rows) if rows is None else len(rows), a_rows.shape[1]
    kept, worst = count - -(-count // TIPPED_ONE_IN), 0.0
    chosen = np.arange(len(a_rows)) if rows is None else rows
    step = max(1, 16 * BLOCK // max(1, count))
    for start in range(0, width if kept > 0 else 0, step):
        some = slice(start, start + step)
        off = difference(a_rows[chosen, some], b_rows[chosen, some])
        off *= weights.tokens[:, None] * weights.channels[some]
        least = np.partition(np.square(off), kept - 1, axis=0)[:kept]
        worst = max(worst, float(least.sum(axis=0).max()))
    return math.sqrt(worst / max(1, count))


def _middle(values: Float64) -> float:
    """The median of numbers without NaN; `np.median` takes several times as long for few."""
    half = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(values, half)
    return float((ordered[half[0]] + ordered[half[1]]) / 2)


def difference(a: Array, b: Array) -> Float64:
    """a - b in float64; 0 where both are the same, be it infinite."""
    found = np.zeros(a.shape)
    with np.errstate(all="ignore"):
        np.subtract(a, b, out=found, where=np.asarray(a != b), dtype=np.float64)
    return found


def row_sizes(
    a: Array, b: Array | None, keep: Array | None = None, channels: Float64 | None = None
) -> Float64:
    """L2 of a - b (or of a) token by token, for the tokens that count; channels may be weighed."""
    return sizes(a, b, keep, channels)[0]


def sizes(
    a: Array, b: Array | None, keep: Array | None = None, channels: Float64 | None = None
) -> tuple[Float64, Float64]:
    """The same, and RMS of a - b channel by channel, over the tokens that count."""
    a_rows, b_rows, rows = _as_rows(a, b, keep)
    count = len(a_rows) if rows is None else len(rows)
    weights = even(count, a_rows.shape[1])
    if channels is not None:
        weights = replace(weights, channels=channels)
    found, squares = _measured(a_rows, b_rows, rows, weights, None)
    return np.sqrt(found[:, 1]), np.sqrt(squares / max(1, count))


def error_rows(a: Array, b: Array, keep: Array | None, most: int) -> Float64:
    """a - b in float64, token by token: of the tokens that count so many at most, evenly taken."""
    (a_rows, _, rows), (b_rows, _, _) = _as_rows(a, None, keep), _as_rows(b, None, keep)
    count = len(a_rows) if rows is None else len(rows)
    some = np.arange(0, count, max(1, -(-count // most)))
    chosen = some if rows is None else rows[some]
    with np.errstate(invalid="ignore", over="ignore"):
        return np.subtract(a_rows[chosen], b_rows[chosen], dtype=np.float64)


def even(rows: int, width: int) -> Weights:
    """All tokens and all channels alike."""
    return Weights(np.ones(rows), np.ones(width))


def inverse(noise: Float64, most: float = MOST_TOKEN_WEIGHT) -> Float64:
    """Weights from noise: 1 for the median one; what has no noise to speak of weighs `most`."""
    finite = np.where(np.isfinite(noise), noise, 0.0)
    middle = float(np.median(finite[finite > 0])) if (finite > 0).any() else 0.0
    if not middle:
        return np.ones_like(noise)
    weights: Float64 = middle / np.maximum(finite, middle / most)
    return weights


def _as_rows(
    a: Array, b: Array | None, keep: Array | None
) -> tuple[Array, Array | None, Array | None]:
    width = a.shape[-1] if a.ndim else 1
    shape = (math.prod(a.shape[:-1]), width)
    return a.reshape(shape), None if b is None else b.reshape(shape), _rows(a, keep, width)


def _measured(
    a: Array, b: Array | None, rows: Array | None, weights: Weights, whole: Array | None
) -> tuple[Float64, Float64]:
    with np.errstate(all="ignore"):
        found = _differences(a, b, rows, weights, whole)
        if not math.isfinite(float(found[0].sum())):
            same = np.isinf(a) if b is None else np.isinf(a) & (a == b)
            if same.any():
                a = np.where(same, np.zeros((), a.dtype), a)
                b = b if b is None else np.where(same, np.zeros((), b.dtype), b)
                found = _differences(a, b, rows, weights, whole)
        return found


def _differences(
    a: Array, b: Array | None, rows: Array | None, weights: Weights, whole: Array | None
) -> tuple[Float64, Float64]:
    fast = fast_difference(a, b, rows, weights.tokens, weights.channels, whole)
    return fast or _difference(a, b, rows, weights, whole)


def _difference(
    a: Array, b: Array | None, rows: Array | None, weights: Weights, whole: Array | None
) -> tuple[Float64, Float64]:
    """For each row: squares, weighed squares, largest magnitude, largest weighed one.

    Then the weighed squares by channel; fills `whole`. The definition, in numpy.
    """
    width = a.shape[1]
    count = len(a) if rows is None else len(rows)
    found, squares = np.zeros((count, 4)), np.zeros(width)
    step = max(1, BLOCK // max(1, width))
    for start in range(0, count, step):
        part = slice(start, start + step) if rows is None else rows[start : start + step]
        here = slice(start, start + step)
        d = a[part].astype(np.float64)
        if b is not None:
            d -= b[part].astype(np.float64)
        if d.size:
            found[here, 0], found[here, 2] = np.einsum("ij,ij->i", d, d), np.abs(d).max(1)
            d *= weights.tokens[here, None] * weights.channels
            found[here, 1], found[here, 3] = np.einsum("ij,ij->i", d, d), np.abs(d).max(1)
            squares += np.einsum("ij,ij->j", d, d)
            if whole is not None:
                whole[here] = d
    return found, squares


def alive_in(array: Array, keep: Array | None = None) -> Array:
    """How many numbers of each token are not zero, for the tokens that count."""
    rows, _, chosen = _as_rows(array, None, keep)
    counts: Array = np.count_nonzero(rows, axis=1)
    return counts if chosen is None else counts[chosen]


def _rows(array: Array, keep: Array | None, width: int) -> Array | None:
    """Numbers of the rows that count, for a state whose leading two axes `keep` covers."""
    if keep is None:
        return None
    inner = math.prod(array.shape[2:-1])
    chosen = np.flatnonzero(keep)
    return (chosen[:, None] * inner + np.arange(inner)).ravel() if inner > 1 else chosen
