"""A weight as an artefact stores it: numbers, and a step and a zero for each block of them.

    value = (number - zero) * step

Rounding to the nearest number leaves at most half a step. A block that has more is no rounding of
the model's weights: its step or its zero is wrong, or its numbers are others'. Where that is so of
most blocks, by little, and no other step would help, the artefact was rounded in a way of its own
(GPTQ and its kin make up for one number's error in the next): what it stores is then what it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from driftwalk.dtypes import Array, Float64

from .constants import (
    GROUPED_ROWS,
    REFITTED_NEAR,
    ROUNDED_COSINE,
    ROUNDED_EXPLAINED,
    ROUNDED_OWN_WAY,
    ROUNDED_TIE,
    SAME_BLOCK_SHARE,
    ZEROS_SHIFTED,
)
from .rounding import Rounding

_TILE = 1 << 20
"""Numbers that are widened at a time."""


@dataclass(frozen=True)
class Grid:
    """The numbers that a format has."""

    name: str
    lowest: float
    highest: float
    digits: int | None = None
    """Of the significand, behind the point; None for whole numbers."""
    least: float = 1.0
    """The spacing of the smallest numbers."""
    table: tuple[float, ...] = ()
    """All of them in order, where they follow no rule."""

    @property
    def bits(self) -> int:
        if self.table:
            return (len(self.table) - 1).bit_length()
        return 8 if self.digits is not None else int(self.highest - self.lowest).bit_length()

    def spacing(self, numbers: Float64) -> Float64 | float:
        """From each number to the next; of a table, to the farther of its two neighbours."""
        if self.table:
            gaps = np.diff(np.array(self.table))
            wider = np.maximum(np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:]))
            around: Float64 = wider[np.searchsorted(self._between, numbers)]
            return around
        if self.digits is None:
            return 1.0
        exponents = np.frexp(np.maximum(np.abs(numbers), self.least))[1] - 1
        made: Float64 = np.maximum(np.ldexp(1.0, exponents - self.digits), self.least)
        return made

    @property
    def _between(self) -> Float64:
        """Half-way from each number of a table to the next."""
        numbers = np.array(self.table)
        half_way: Float64 = (numbers[1:] + numbers[:-1]) / 2
        return half_way

    def nearest(self, values: Float64) -> Float64:
        """Of two, the even one."""
        if self.table:
            chosen: Float64 = np.array(self.table)[np.searchsorted(self._between, values)]
            return chosen
        space = self.spacing(values)
        made: Float64 = np.clip(np.rint(values / space) * space, self.lowest, self.highest)
        return made


def whole_numbers(bits: int, signed: bool = True) -> Grid:
    """int8, uint4, ..."""
    lowest = -(1 << bits - 1) if signed else 0
    return Grid(f"{'' if signed else 'u'}int{bits}", lowest, lowest + (1 << bits) - 1)


_FLOATS = {
    "float8_e4m3fn": Grid("fp8 (e4m3)", -448.0, 448.0, 3, 2.0**-9),
    "float8_e5m2": Grid("fp8 (e5m2)", -57344.0, 57344.0, 2, 2.0**-16),
}


def grid_of(word: str) -> Grid | None:
    """The numbers of a dtype, by its name; None where it is not known."""
    signed, bits = not word.startswith("u"), word.lstrip("u").removeprefix("int")
    return whole_numbers(int(bits), signed) if bits.isdigit() else _FLOATS.get(word)


@dataclass(frozen=True, eq=False)
class RoundedWeight:
    """One weight of a module."""

    path: str
    """The module's, in the model; empty while that is not known."""
    grid: Grid
    numbers: Array
    step: Float64
    zero: Float64
    """Of each block: as many along each axis as blocks of that size have room."""
    block: tuple[int, ...]
    inputs: Rounding | None = None
    """How the inputs of the product are rounded; None: they are not."""
    slack: float | Float64 = 0.0
    """Relative: by how much steps, and what was rounded, may be off by a coarser dtype; one for
    all blocks, or one for each as there are steps."""
    source: str = ""
    """What the artefact calls what has it, where that is not the module's path."""
    order: Array | None = None
    """The matrix's columns in the order in which `numbers` has them; None: as they stand."""
    axis: int = 1
    """Along which that is; 0 where rows and columns were turned."""

    @property
    def values(self) -> Float64:
        return self._whole(_values(*self._blocks()))

    def moved(self, rng: np.random.Generator) -> Float64:
        """The same, each number moved by no more than what a rounding may be off."""
        numbers, zero, step = self._blocks()
        wide = numbers.astype(np.float64)
        off = rng.uniform(-0.5, 0.5, wide.shape) * self.grid.spacing(wide)
        return self._whole(_values(wide + off, zero, step))

    @property
    def inside(self) -> Array:
        """Which numbers are neither the least nor the greatest: those may have been cut off."""
        within = (self.numbers > self.grid.lowest) & (self.numbers < self.grid.highest)
        return within if self.order is None else np.take(within, np.argsort(self.order), self.axis)

    def _whole(self, rows: Float64) -> Float64:
        """The matrix of its blocks, its columns as they stand."""
        made = joined(rows, self.numbers.shape, self.block)
        return made if self.order is None else np.take(made, np.argsort(self.order), self.axis)

    @property
    def blocks(self) -> int:
        return math.prod(self.step.shape)

    @property
    def bytes(self) -> int:
        """What it takes, its steps in float32 included."""
        return self.numbers.size * self.grid.bits // 8 + 4 * self.blocks

    def turned(self) -> RoundedWeight:
        """The same matrix, rows as columns."""
        numbers, step, zero = self.numbers.T, self.step.T, self.zero.T
        slack = np.broadcast_to(self.slack, self.step.shape).T
        made = replace(self, numbers=numbers, step=step, zero=zero, block=self.block[::-1])
        return replace(made, slack=slack, axis=1 - self.axis)

    def honest(self, own: Array) -> Honest:
        """What it should hold, given the model's own weight."""
        own = own if self.order is None else np.take(own, self.order, self.axis)
        weights = split(own, self.block)
        numbers, zero, step = self._blocks()
        worst = self._worst(weights, numbers, zero, step)
        wrong = ~(worst <= 1)
        made = _values(numbers, zero, step)
        if not wrong.any():
            return Honest(self._whole(made), self.blocks)
        theirs, mine = numbers[wrong].astype(np.float64), weights[wrong].astype(np.float64)
        again, fit_zero, fit_step = self._again(mine, theirs, zero[wrong])
        fits = np.abs(mine / fit_step + fit_zero - theirs) <= REFITTED_NEAR * self.grid.spacing(
            theirs
        )
        same = fits.mean(1) >= SAME_BLOCK_SHARE
        with np.errstate(divide="ignore", invalid="ignore"):
            off = mine / step[wrong] + zero[wrong] - theirs
        far = float(np.sqrt(np.mean(np.square(off))))
        close = wrong.mean() > 1 / 2 and same.mean() < 1 / 2 and far < ROUNDED_OWN_WAY
        elsewhere = close and (_shifted(off) or self._scaled(own) or self._regrouped(own))
        if close and not elsewhere and self._is_all_over(own):
            return Honest(self._whole(made), self.blocks, own_way=True)
        made[wrong] = _values(np.where(same[:, None], theirs, again), fit_zero, fit_step)
        counts = int(same.sum()), int((~same).sum())
        beyond = float(np.nan_to_num(worst, nan=math.inf).max())
        return Honest(self._whole(made), self.blocks, *counts, beyond=beyond)

    def _blocks(self) -> tuple[Array, Float64, Float64]:
        """Numbers, a block a row; zeros and steps, as columns."""
        return split(self.numbers, self.block), self.zero.reshape(-1, 1), self.step.reshape(-1, 1)

    def _worst(self, weights: Array, numbers: Array, zero: Float64, step: Float64) -> Float64:
        """For each block: its number that is farthest off, in parts of what a rounding may be."""
        worst = np.zeros(len(numbers))
        slack = np.broadcast_to(self.slack, self.step.shape).reshape(-1, 1)
        for rows, columns in _tiles(numbers.shape):
            n, w = (one[rows, columns].astype(np.float64) for one in (numbers, weights))
            with np.errstate(divide="ignore", invalid="ignore"):
                own = np.where(w == 0, 0.0, w / step[rows])
                off = own + zero[rows] - n
                size = np.maximum(np.abs(own), np.abs(n - zero[rows]))
                most = (0.5 + ROUNDED_TIE) * self.grid.spacing(n) + slack[rows] * size
            beyond = (n >= self.grid.highest) & (off > 0)
            beyond |= (n <= self.grid.lowest) & (off < 0)
            worst[rows] = np.maximum(worst[rows], np.where(beyond, 0.0, np.abs(off) / most).max(1))
        return worst

    def _scaled(self, own: Array) -> bool:
        """Whether factors of columns or rows explain the difference: no way of rounding has any."""
        values, own = joined(_values(*self._blocks()), own.shape, self.block), own.astype(float)
        before = float(np.linalg.norm(values - own))
        for axis in (0, 1) if own.ndim == 2 else ():
            sums = ((a * own).sum(axis, keepdims=True) for a in (values, own))
            if float(np.linalg.norm(values - _over(*sums) * own)) < ROUNDED_EXPLAINED * before:
                return True
        return False

    def _is_all_over(self, own: Array) -> bool:
        """Whether most columns, and most rows, have numbers that are not the nearest ones.

        Where others are all exact, those of a few columns were changed, not rounded otherwise.
        """
        numbers, zero, step = self._blocks()
        with np.errstate(divide="ignore", invalid="ignore"):
            off = np.abs(split(own, self.block) / step + zero - numbers)
        beyond = joined(off, own.shape, self.block) > (0.5 + ROUNDED_TIE) * self.grid.spacing(
            self.numbers
        )
        return all(beyond.any(axis).mean() > 1 / 2 for axis in ((0, 1) if own.ndim == 2 else ()))

    def _regrouped(self, own: Array) -> bool:
        """Whether steps of other groups explain it: the order of the columns was lost."""
        n, w, step, zero = self.numbers, own, self.step, self.zero
        if self.block[0] != 1:
            n, w, step, zero = (one.T for one in (n, w, step, zero))
        if 1 not in self.block or step.shape[1] == 1:
            return False
        some = slice(None, None, -(-len(n) // GROUPED_ROWS))
        n, w = n[some].astype(np.float64), w[some].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            pairs = zip(step[some].T[:, :, None], zero[some].T[:, :, None], strict=True)
            left = np.stack([np.square(w / s + z - n).mean(0) for s, z in pairs])
        of = np.arange(n.shape[1]) // max(self.block)
        stored = left[of, np.arange(n.shape[1])].sum()
        return bool(left.min(0).sum() < ROUNDED_EXPLAINED**2 * stored)

    def _again(
        self, weights: Float64, numbers: Float64, zero: Float64
    ) -> tuple[Float64, Float64, Float64]:
        """The same weights rounded again: by the step and zero that fit the numbers best ...

        ... or, where these have nothing to do with the weights, by ones that reach their extremes.
        """
        n, w = numbers - numbers.mean(1, keepdims=True), weights - weights.mean(1, keepdims=True)
        slope = _over((n * w).sum(1, keepdims=True), (n * n).sum(1, keepdims=True))
        sizes = np.sqrt((n * n).sum(1) * (w * w).sum(1))
        alike = ((n * w).sum(1) >= ROUNDED_COSINE * np.maximum(sizes, 1e-300))[:, None]
        symmetric = not zero.any() and self.grid.lowest < 0
        if symmetric:
            reach = np.abs(weights).max(1, keepdims=True) / self.grid.highest
            other = np.zeros_like(zero)
            squares = np.square(numbers).sum(1, keepdims=True)
            slope = _over((numbers * weights).sum(1, keepdims=True), squares)
        else:
            span = weights.max(1, keepdims=True) - weights.min(1, keepdims=True)
            reach = span / (self.grid.highest - self.grid.lowest)
        step = np.where(alike & (slope > 0), slope, np.where(reach > 0, reach, 1.0))
        if not symmetric:
            middle = numbers.mean(1, keepdims=True) - weights.mean(1, keepdims=True) / step
            lowest = self.grid.lowest - weights.min(1, keepdims=True) / step
            other = np.rint(np.where(alike, middle, lowest))
        return self.grid.nearest(weights / step + other), other, step


@dataclass(frozen=True, eq=False)
class Honest:
    """What a stored weight should hold, and how far what it holds is that."""

    values: Float64 = field(repr=False)
    blocks: int
    wrong_steps: int = 0
    """Blocks whose numbers are right, and whose step or zero is not."""
    wrong_numbers: int = 0
    own_way: bool = False
    """Whether it was not rounded to the nearest numbers, on purpose."""
    beyond: float = 1.0
    """How many times what a rounding may be off its worst number is off."""

    @property
    def is_right(self) -> bool:
        return not (self.wrong_steps or self.wrong_numbers)

    def sentence(self, path: str) -> str:
        """What is wrong with it."""
        counts = {"another step or zero": self.wrong_steps, "other numbers": self.wrong_numbers}
        found = [f"{count} with {what}" for what, count in counts.items() if count]
        return (
            f"{path} does not hold the model's weights, rounded: of {self.blocks} blocks "
            f"{' and '.join(found)}"
        )


def _values(numbers: Array, zero: Float64, step: Float64) -> Float64:
    made: Float64 = (numbers.astype(np.float64) - zero) * step
    return made


def _shifted(off: Float64) -> bool:
    """Whether all zeros are wrong by one, say: own ways of rounding err to both sides."""
    return bool(abs(np.median(np.median(off, 1))) > ZEROS_SHIFTED)


def _over(top: Float64, bottom: Float64) -> Float64:
    made: Float64 = top / np.maximum(bottom, 1e-300)
    return made


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    rows, width = shape
    high, wide = max(1, _TILE // max(1, width)), min(width, _TILE)
    for top in range(0, rows, high):
        for left in range(0, width, wide):
            yield slice(top, top + high), slice(left, left + wide)


def split(array: Array, block: tuple[int, ...]) -> Array:
    """The numbers of each block as a row."""
    shape = [n for size, b in zip(array.shape, block, strict=True) for n in (size // b, b)]
    axes = len(block)
    turned = array.reshape(shape).transpose(*range(0, 2 * axes, 2), *range(1, 2 * axes, 2))
    made: Array = turned.reshape(-1, math.prod(block))
    return made


def joined(rows: Float64, shape: tuple[int, ...], block: tuple[int, ...]) -> Float64:
    """The other way round."""
    counts = [size // b for size, b in zip(shape, block, strict=True)]
    axes = len(block)
    apart = rows.reshape(*counts, *block)
    order = [axis for pair in zip(range(axes), range(axes, 2 * axes), strict=True) for axis in pair]
    return apart.transpose(*order).reshape(shape)
