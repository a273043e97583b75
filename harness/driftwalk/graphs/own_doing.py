"""What a node made of the tensors it was given, and how much of that honest arithmetic explains.

Let c be the candidate's tensor, c' those that it is computed from, X the reference's own nodes:

    c - x   =   ( c - X(c') )   +   ( X(c') - x )
    error        introduced          inherited

    floats          |introduced|  <=  NODE_NOISES * noise + what the tensor's own noise would be
    whole numbers   |c - v|       <=  1/2 + a little + NODE_NOISES * noise      in steps

`noise` is how far X(c') moves when every tensor in between is moved by a few units of roundoff;
v is what the reference would round, before it is rounded. A number that lies on the boundary
between two steps may go either way; one that does not has no excuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import FORMATS, Array, Format, format_of, loosest
from ..judge.constants import (
    COARSE_NODE_ROUNDOFFS,
    FINE_NODE_ROUNDOFFS,
    HALF_WAY,
    HALF_WAY_SOFTMAX,
    NODE_NOISES,
    ONE_OFF_SHARE,
)


def near_softmax(step: float) -> float:
    """How near that is for a softmax, with what ONNX Runtime leaves of 1 / step: whole steps."""
    many = 1 / step if step > 0 else 0.0
    return HALF_WAY_SOFTMAX + (many - math.floor(many))


def noise_of(known: Format) -> float:
    """How far each element is moved to measure the noise, at most, relative to its size.

    In half precision sums are formed in float32 and rounded once; in float32 the order of a long
    sum costs several units.
    """
    fine = known.roundoff <= FORMATS["fp32"].roundoff
    return (FINE_NODE_ROUNDOFFS if fine else COARSE_NODE_ROUNDOFFS) * known.roundoff


@dataclass(frozen=True, eq=False)
class Grid:
    """Steps that floats are rounded to: `round(value / step) + zero`, from `low` to `high`."""

    step: Array
    zero: Array | None
    axis: int
    low: int
    high: int
    values: tuple[Array, ...] = ()
    """What was rounded: as it is, and with noise; none where that is the tensor itself."""
    near: float = HALF_WAY

    def in_range(self, array: Array) -> Array:
        """Floats in steps, not rounded, inside the range that the steps have."""
        found: Array = np.clip(self.in_steps(array), self.low, self.high)
        return found

    def in_steps(self, array: Array) -> Array:
        """Floats in steps, not rounded."""
        step = self.step.astype(np.float64)
        zero = np.zeros(()) if self.zero is None else self.zero.astype(np.float64)
        if step.ndim == 1 and step.size > 1:
            along = [1] * array.ndim
            along[self.axis] = -1
            step, zero = step.reshape(along), zero.reshape(along) if zero.size > 1 else zero
        with np.errstate(all="ignore"):
            found: Array = array.astype(np.float64) / step + zero
        return found


@dataclass(frozen=True, eq=False)
class Replayed:
    """One tensor: of both sides, and what the reference makes of the candidate's inputs."""

    tensor: str
    reference: Array
    candidate: Array
    made: Array
    shaken: tuple[Array, ...]
    """`made` again, with noise."""
    grid: Grid | None = None
    rounds: bool = False
    """Whether a node gives whole numbers that it rounded inside, from what nobody can see."""


@dataclass(frozen=True)
class OwnDoing:
    """What one node introduced; `needed` above 1 is more than honest arithmetic explains."""

    tensor: str
    needed: float
    allowed: float
    """In max-abs."""
    inherited: float
    """In max-abs: what the reference makes of the candidate's inputs, against its own."""
    other_steps: int = 0
    """Whole numbers that are not the reference's own."""

    @property
    def guilty(self) -> bool:
        return not self.needed <= 1


def own_doing(one: Replayed, dtypes: Sequence[str] = ()) -> OwnDoing:
    """Judge one tensor by what its node, or what was fused into it, made of its inputs."""
    inherited = _largest(one.made, one.reference)
    if one.candidate.shape != one.made.shape:
        return OwnDoing(one.tensor, math.inf, 0.0, inherited)
    whole = one.made.dtype.kind in "iub"
    other = int(np.count_nonzero(one.candidate != one.reference)) if whole else 0
    if np.array_equal(one.candidate, one.made, equal_nan=not whole):
        return OwnDoing(one.tensor, 0.0, 0.0, inherited, other)
    introduced = _largest(one.candidate, one.made)
    if whole:
        return OwnDoing(one.tensor, _whole(one), introduced, inherited, other)
    needed, allowed = _floats(one, dtypes)
    rounded = _on_grid(one, one.grid) if one.grid is not None else None
    # Rounded here, a float is judged by that; one that goes to be rounded may have been before.
    if rounded is not None and one.grid is not None and (one.grid.values or rounded < needed):
        needed, allowed = rounded, introduced
    return OwnDoing(one.tensor, needed, allowed, inherited)


def _floats(one: Replayed, dtypes: Sequence[str]) -> tuple[float, float]:
    made, candidate = one.made.astype(np.float64), one.candidate.astype(np.float64)
    bad = ~np.isfinite(made)
    same = (made == candidate) | (np.isnan(made) & np.isnan(candidate))
    if bool(np.any((bad | ~np.isfinite(candidate)) & ~same)):
        return math.inf, 0.0
    finite = np.where(bad, 0.0, made)
    error = np.where(same, 0.0, candidate - finite)
    known = [f for f in (format_of(one.made), format_of(one.candidate)) if f is not None]
    # Of one dtype, each tensor counts by its own; a converted side by what it computes in.
    if len(set(dtypes)) > 1:
        known += [FORMATS[name] for name in dtypes if name in FORMATS]
    unit = noise_of(loosest(known))
    noises = [_difference(draw, one.made) for draw in one.shaken if draw.shape == made.shape]
    # Noise is in units of the tensor's own format; a side may compute in a coarser one.
    coarser = unit / noise_of(known[0]) if known else 1.0
    limits = []
    for norm in (_peak, rms):
        noise = coarser * max((norm(n) for n in noises), default=0.0)
        limits.append((norm(error), NODE_NOISES * noise + unit * norm(finite)))
    return max(_ratio(size, limit) for size, limit in limits), limits[0][1]


def _whole(one: Replayed) -> float:
    """Against what was rounded where that is known; else they must be the same, but for a few."""
    off = one.candidate.astype(np.int64) - one.made.astype(np.int64)
    flipped = int(np.count_nonzero(off))
    grid = one.grid
    if grid is None or not grid.values or grid.values[0].shape != off.shape:
        few = one.rounds and flipped <= ONE_OFF_SHARE * off.size and int(np.abs(off).max()) == 1
        return 1.0 if few else math.inf
    return _by_steps(one.candidate.astype(np.float64), grid, grid.values)


def _on_grid(one: Replayed, grid: Grid) -> float | None:
    """A float that is a whole number of steps, where it should be; None where it is not."""
    candidate = grid.in_steps(one.candidate)
    if _peak(candidate - np.round(candidate)) > HALF_WAY:
        return None
    values = grid.values or (one.made, *one.shaken)
    return _by_steps(candidate, grid, values) if values[0].shape == candidate.shape else None


def _by_steps(candidate: Array, grid: Grid, values: Sequence[Array]) -> float:
    """Numbers in steps, against what was rounded: as it is, and with noise."""
    value = grid.in_range(values[0])
    draws = [grid.in_range(draw) for draw in values[1:] if draw.shape == value.shape]
    noise = max((_peak(_difference(draw, value)) for draw in draws), default=0.0)
    room = 0.5 + grid.near + NODE_NOISES * noise + noise_of(FORMATS["fp32"]) * _peak(value)
    return _ratio(_peak(candidate - value), room)


def _difference(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        found: Array = a.astype(np.float64) - b.astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0)


def _largest(a: Array, b: Array) -> float:
    return _peak(_difference(a, b)) if a.shape == b.shape else math.inf


def _peak(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def rms(array: Array) -> float:
    """Of the finite elements."""
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        square = float(np.vdot(flat, flat)) if flat.dtype in (np.float32, np.float64) else math.inf
        if not math.isfinite(square):  # too large for float32, or not finite
            wide = flat.astype(np.float64)
            wide = wide[np.isfinite(wide)]
            square = float(np.vdot(wide, wide))
    return math.sqrt(square / flat.size) if flat.size else 0.0


def _ratio(found: float, limit: float) -> float:
    return 0.0 if found == 0 else found / limit if limit > 0 else math.inf
