"""How wrong honest arithmetic is at one point, and what is allowed there.

    allowed(n)   =   limit * noise(n)  +  floor * size(n)        in each judged norm

`noise` is the yardstick's error. A single yardstick run is one draw: at one huge element it can be
lucky. So a token's noise, by which it is weighed, is the largest of several draws, and never less
than what rounding the state itself makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from statistics import median

import numpy as np

from ..dtypes import Array, Float64
from ..measure.halves import widened
from ..measure.norms import (
    BLOCK,
    NORM_NAMES,
    ZERO,
    Norms,
    Weights,
    alive_in,
    distance,
    error_rows,
    inverse,
    norms_of,
    ratio,
    row_sizes,
    sizes,
)
from ..workers import in_threads
from .constants import (
    COARSE_FEW_TOKENS,
    COARSE_MIDDLE,
    CORRELATION_TOKENS,
    FINE_ROUNDOFF,
    FLOOR_ROUNDOFFS,
    GUESS_TOKENS,
    MANY_TOKENS,
    MOST_LUCK,
    MOST_NOISE_GAIN,
    NARROW_TOKEN,
    ROOM_OF_A_COPY,
    ROOM_OF_FEW_LAYERS,
    ROOM_PER_NORM,
    ROUNDED_RMS,
    SEQUENTIAL_SUM,
    THIRD_RUN_APART,
    UPPER_TAIL_TOKENS,
    YARDSTICKS,
)

ROOM = Norms(**ROOM_PER_NORM)
"""Times the limit, norm by norm, for another implementation."""
SAME = Norms(*[ROOM_OF_A_COPY] * len(fields(Norms)))
"""Times the limit, for a candidate that in most layers computes bit by bit what the reference does:
where it does not, two honest results are at most two yardsticks apart."""

LIKE_THE_YARDSTICK = Norms(*[ROOM_OF_FEW_LAYERS] * len(fields(Norms)))
"""Times the limit, for a candidate that differs from the reference in few layers, and says in what:
another attention computes the rest of a model bit by bit alike, and is no copy."""


@dataclass(frozen=True, eq=False)
class Honest:
    """Honest arithmetic at one point: its error, the size of the state, and what tokens weigh."""

    noise: Norms
    size: Norms
    weights: Weights
    roundoff: float
    """Of the coarsest format that took part."""
    apart: float = 1.0
    """How many times as far off one honest run is as another, at the token where most: as seen in
    two, or as is to be expected where few numbers tell the noise of a token."""
    alone: float = 1.0
    """How many times as far as a whole channel a few of its numbers may go: roundings tip over."""

    @property
    def rows(self) -> int:
        return len(self.weights.tokens)

    @property
    def width(self) -> int:
        return len(self.weights.channels)


def honest(
    made: Array,
    true: Array,
    keep: Array | None,
    roundoff: float,
    draws: Iterable[Array] = (),
    other_branch: Array | None = None,
    tips: bool = False,
) -> Honest:
    """From what the yardstick made; `draws` are what other honest runs made.

    These say where noise is large, the yardstick how large it is: they are brought to its size.
    `other_branch` is the state after choices that tipped over: as large as it is, that is honest.
    `tips`: numbers are rounded while the model runs, and one may tip over in any token.
    """
    infinite = np.isinf(true)
    if infinite.any():  # on purpose, and no noise: what other runs have there says nothing
        made = np.where(infinite & (made == true), 0.0, made)
        draws = [np.where(infinite, 0.0, run) for run in draws]
        other_branch = None if other_branch is None else np.where(infinite, 0.0, other_branch)
        true = np.where(infinite, 0.0, true)
    made = widened(made)  # once, not each time that it is measured
    least = _least(true, roundoff)
    (typical, of_made), (lowest, of_least) = sizes(made, true, keep), sizes(least, None, keep)
    runs, apart, by_channel = [(made, 1.0)], 1.0, [of_least, of_made]
    alive, width = alive_in(true, keep), true.shape[-1] if true.ndim else 1
    errors = error_rows(made, true, keep, CORRELATION_TOKENS)
    own = own_share(errors)
    for run in map(widened, draws):
        other, of_run = sizes(run, true, keep)
        factor = gain(typical, other)
        runs.append((run, factor))
        by_channel.append(factor * of_run)
        one, another = (steadied(size, alive, width, own) for size in (typical, factor * other))
        apart = max(apart, _apart(one, another, lowest))
    rows = _rows(true, keep)
    channels = _channel_weights(np.max(by_channel, axis=0), rows, own_rows(errors, rows))
    by_token = [row_sizes(least, None, keep, channels)]
    by_token += [factor * row_sizes(run, true, keep, channels) for run, factor in runs]
    noisy = steadied(np.max(by_token, axis=0), alive, width, own)
    if tips and np.isfinite(noisy).all():
        noisy = np.maximum(noisy, math.sqrt(float(np.mean(np.square(noisy)))))
    if other_branch is not None:
        jumps = row_sizes(other_branch, true, keep, channels)
        noisy = np.maximum(noisy, _of_many(jumps, noisy))
    if own < 1:
        apart = max(
            apart,
            YARDSTICKS
            / THIRD_RUN_APART
            * _luck(len(alive), min(width, own * width + GUESS_TOKENS)),
        )
    some = (alive > 0).any() and not (alive > 0).all()
    weights = Weights(inverse(noisy), channels, alive > 0 if some else None)
    noise, size = distance(made, true, keep, weights), norms_of(true, keep, weights)
    if other_branch is not None:
        noise = noise.or_larger(distance(other_branch, true, keep, weights))
    return Honest(noise, size, weights, roundoff, apart)


def steadied(noise: Float64, alive: Array, width: int, own_share: float = 1.0) -> Float64:
    """The noise of tokens that few numbers tell: mixed with that of the others.

    ReLU leaves few numbers of a line of an image, or one: what two draws are off there is luck. So
    it is in a token narrower than NARROW_TOKEN, and in one of whose numbers only a share is rounded
    on its own. In a wide token without zeros nothing is mixed in.
    """
    known = noise[(noise > 0) & np.isfinite(noise)]
    told = np.asarray(alive) * own_share
    guesses = GUESS_TOKENS * np.maximum(1 - alive / max(1, width), 1 - told / NARROW_TOKEN).clip(
        0, 1
    )
    if not known.size or not guesses.any():
        return noise
    own = np.where(np.isfinite(noise), noise, 0.0)
    both = np.hypot(np.sqrt(told) * own, np.sqrt(guesses) * np.median(known))
    mixed = both / np.sqrt(told + guesses)
    return np.where(np.isfinite(noise) & (guesses > 0), mixed, noise)


def own_share(errors: Float64) -> float:
    """The share of a token's numbers that are rounded on their own: 1, or less where alike.

    The square of a sum of n independent errors is that of one of them, n times; of n equal ones
    n * n times. Seen in the yardstick's errors alone, so that no candidate can bring it about.
    """
    alike = _alike(errors, axis=1)
    return 1 / max(1.0, float(alike.mean())) if alike.size else 1.0


def own_rows(errors: Float64, rows: int) -> Float64:
    """How many of the rows tell the noise of each channel: fewer where their errors are alike.

    A channel that is one number in all tokens, as the first size of all boxes is, is rounded once.
    """
    share = (_alike(errors, axis=0, unknown=1.0) - 1) / max(1, len(errors) - 1)
    return rows / (1 + max(0, rows - 1) * share.clip(0, 1))


def _alike(errors: Float64, axis: int, unknown: float | None = None) -> Float64:
    """Of lines of errors, those that have any: about 1 where they are independent, n of n equal."""
    squares = np.square(errors).sum(axis=axis)
    known = (squares > 0) & np.isfinite(squares)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        alike = np.square(errors.sum(axis=axis)) / squares
    return alike[known] if unknown is None else np.where(known, alike, unknown)


def _of_many(jumps: Float64, noise: Float64) -> Float64:
    """How far tokens may jump, given how far they did in one run.

    Where many stand at a tie, they stand in rows of next to equal ones: which of them takes whose
    place is chance, so that each may go as far as the farthest. How many go how far is not: that
    is what the noise of all tokens together says.
    """
    many = np.isfinite(jumps).all() and (jumps > YARDSTICKS * noise).mean() > MANY_TOKENS
    return np.full_like(jumps, jumps.max()) if many else jumps


def _apart(one: Float64, other: Float64, least: Float64) -> float:
    """How far the noise of two runs is apart at the token where most; none is below the least."""
    a, b = np.maximum(one, least), np.maximum(other, least)
    known = (a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b)
    times = a[known] / b[known]
    return float(np.maximum(times, 1 / times).max(initial=1.0))


def _least(true: Array, roundoff: float) -> Array:
    """The least noise of each element."""
    if roundoff > FINE_ROUNDOFF:
        return roundoff * ROUNDED_RMS * np.abs(true)
    width = true.shape[-1] if true.ndim else 1
    rows = true.reshape(true.size // max(1, width), width)
    least = np.empty(rows.shape)
    step = max(1, BLOCK // max(1, width))

    def look(start: int) -> None:  # in pieces: fresh memory takes longer than all this
        some = slice(start, start + step)
        square = np.square(rows[some], dtype=np.float64)
        whole = square.sum(axis=-1, keepdims=True)
        square *= SEQUENTIAL_SUM * width / np.where(whole > 0, whole, 1.0)
        square += FLOOR_ROUNDOFFS
        square *= roundoff
        np.multiply(square, np.abs(rows[some]), out=least[some])

    in_threads(look, range(0, len(rows), step))
    return least.reshape(true.shape)


def gain(typical: Float64, other: Float64) -> float:
    """By how much an error is to be multiplied to be of the typical size, within reason."""
    both = (typical > 0) & (other > 0) & np.isfinite(typical)
    return (
        min(MOST_NOISE_GAIN, float(np.median(typical[both] / other[both]))) if both.any() else 1.0
    )


def _channel_weights(noise: Float64, rows: int, own: Float64) -> Float64:
    """The noise of a channel over few tokens is a guess: it is mixed with that of the others.

    `own` is how many tell that of each channel: of what that makes of it, the larger is believed.
    """
    finite = np.where(np.isfinite(noise), noise, 0.0)
    middle = float(np.median(finite)) if finite.size else 0.0

    def mixed(told: Float64 | int) -> Float64:
        return np.sqrt((told * finite**2 + GUESS_TOKENS * middle**2) / (told + GUESS_TOKENS))

    return inverse(np.maximum(mixed(rows), mixed(own)))


def _rows(array: Array, keep: Array | None) -> int:
    counted = array.size // max(1, array.shape[-1] if array.ndim else 1)
    return counted if keep is None else counted * int(keep.sum()) // keep.size


def for_few(rows: int) -> float:
    """Times a limit: with few tokens one draw of noise says little."""
    return 1 + GUESS_TOKENS / max(1, rows)


def limits(roundoff: float, rows: int, width: int, apart: float = 1.0) -> Norms:
    """Times the yardstick's error, norm by norm, for a candidate that computes as it does.

    `apart` is how far honest runs are apart at a token: a third one is a little further off.
    """
    most = middle = YARDSTICKS * for_few(rows)
    worst = most * max(_luck(rows, width), min(MOST_LUCK, THIRD_RUN_APART * apart / YARDSTICKS))
    if roundoff > FINE_ROUNDOFF:
        middle = min(YARDSTICKS, COARSE_MIDDLE + COARSE_FEW_TOKENS / math.sqrt(max(1, rows)))
    return Norms(
        *(most, most),
        channel=most,
        spectral=most,
        spread=most,
        peak=worst,
        token_middle=middle,
        token_upper=most * _luck(min(rows, UPPER_TAIL_TOKENS), width),
        token_worst=worst,
        channel_middle=middle,
    )


def _luck(rows: int, width: float) -> float:
    """By how much a draw of noise is too small at the luckiest of so many tokens.

    The noise of a token of width w is below a share of its size with a chance of about that share
    to the power of w: next to none in a state as wide as a model is, but a line of a small image or
    a box has two or four numbers.
    """
    return min(MOST_LUCK, math.pow(max(1, rows), 1 / max(1, width)))


@lru_cache(maxsize=256)
def allowed(known: Honest | None, room: Norms = ROOM) -> Norms:
    """What an error may be at a point."""
    if known is None:
        return ZERO
    roundoff, size, part = known.roundoff, known.size, FLOOR_ROUNDOFFS * known.roundoff
    if room != SAME:  # another implementation may round the same way everywhere
        size = replace(size, spectral=size.spread)
    # The least noise of a token in a coarse format is in its weight already.
    middle = part * ROUNDED_RMS / FLOOR_ROUNDOFFS if roundoff > FINE_ROUNDOFF else part
    floors = Norms(*[*[part] * 6, middle, part, part, middle])
    most = limits(roundoff, known.rows, known.width, known.apart)
    return known.noise.each(_allowed, most, room, size, floors)


def _allowed(noise: float, limit: float, room: float, size: float, floor: float) -> float:
    return noise * limit * room + size * floor


def room_needed(introduced: Mapping[str, Norms], own: Mapping[str, Honest]) -> Norms:
    """How much of ROOM a candidate needs, by the layer in the middle of all its layers.

    Another implementation is a little off in every layer alike; a fault is off in one. A candidate
    that computes as the yardstick does is held to the limits in every norm, and one whose middle
    layer has no error at all to half of them.
    """
    ratios: dict[str, list[float]] = {name: [] for name in NORM_NAMES}
    for point, error in introduced.items():
        noise = own[point].noise if point in own else ZERO
        for name, found in ratios.items():
            if 0 < getattr(noise, name) < math.inf:
                found.append(ratio(getattr(error, name), getattr(noise, name)))
    middle = {name: median(found) if found else 1.0 for name, found in ratios.items()}
    if not any(middle.values()):
        return SAME
    roundoff = max((known.roundoff for known in own.values()), default=FINE_ROUNDOFF)
    return replace(
        ROOM, **{name: max(1.0, min(_most(name, roundoff), middle[name])) for name in NORM_NAMES}
    )


def _most(name: str, roundoff: float) -> float:
    """The room for an implementation that needs it in every layer: no middle beyond YARDSTICKS."""
    if name.endswith("middle"):
        return YARDSTICKS / COARSE_MIDDLE if roundoff > FINE_ROUNDOFF else 1.0
    return float(getattr(ROOM, name))
