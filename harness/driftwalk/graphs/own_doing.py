"""What a node made of the tensors it was given, and how much of that honest arithmetic explains.

Let c be the candidate's tensor, c' those that it is computed from, X the reference's own nodes:

    c - x   =   ( c - X(c') )   +   ( X(c') - x )
    error        introduced          inherited

    floats           |introduced|  <=  K * noise + what the noise of the tensor itself would be
    whole numbers    |c - v|       <=  1/2 + a little + K * noise      in steps

`noise` is how far X(c') moves when every tensor in between is moved by a few units of roundoff;
v is what the reference would round, before it is rounded. A number that lies on the boundary
between two steps may go either way; one that does not has no excuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..dtypes import FORMATS, Array, format_of, loosest
from .replayed import NEAR, Grid, Replayed, noise_of

K = 4.0
_SHARE = 1e-3
"""Of whole numbers whose boundary is not known, so many may be one off."""


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
    if whole:
        return OwnDoing(
            one.tensor, _whole(one), _largest(one.candidate, one.made), inherited, other
        )
    needed, allowed = _floats(one, dtypes)
    rounded = _on_grid(one, one.grid) if one.grid is not None else None
    # Rounded here, a float is judged by that; one that goes to be rounded may have been before.
    if rounded is not None and one.grid is not None and (one.grid.values or rounded < needed):
        needed, allowed = rounded, _largest(one.candidate, one.made)
    return OwnDoing(one.tensor, needed, allowed, inherited)


def _floats(one: Replayed, dtypes: Sequence[str]) -> tuple[float, float]:
    made, candidate = one.made.astype(np.float64), one.candidate.astype(np.float64)
    bad = ~np.isfinite(made)
    same = (made == candidate) | (np.isnan(made) & np.isnan(candidate))
    if bool(np.any((bad | ~np.isfinite(candidate)) & ~same)):
        return math.inf, 0.0
    error = np.where(same, 0.0, candidate - np.where(bad, 0.0, made))
    known = [f for f in (format_of(one.made), format_of(one.candidate)) if f is not None]
    # Of one dtype, each tensor counts by its own; a converted side by what it computes in.
    if len(set(dtypes)) > 1:
        known += [FORMATS[name] for name in dtypes if name in FORMATS]
    unit = noise_of(loosest(known))
    finite = np.where(bad, 0.0, made)
    noises = [_difference(draw, one.made) for draw in one.shaken if draw.shape == made.shape]
    # Noise is in units of the tensor's own format; a side may compute in a coarser one.
    coarser = unit / noise_of(known[0]) if known else 1.0
    limits = []
    for norm in (_peak, _rms):
        noise = coarser * max((norm(n) for n in noises), default=0.0)
        limits.append((norm(error), K * noise + unit * norm(finite)))
    needed = max(_ratio(found, limit) for found, limit in limits)
    return needed, limits[0][1]


def _whole(one: Replayed) -> float:
    """Against what was rounded where that is known; else they must be the same, but for a few."""
    off = one.candidate.astype(np.int64) - one.made.astype(np.int64)
    flipped = int(np.count_nonzero(off))
    grid = one.grid
    if grid is None or not grid.values or grid.values[0].shape != off.shape:
        few = one.rounds and flipped <= _SHARE * off.size and int(np.abs(off).max()) == 1
        return 1.0 if few else math.inf
    return _by_steps(one.candidate.astype(np.float64), grid, grid.values)


def _on_grid(one: Replayed, grid: Grid) -> float | None:
    """A float that is a whole number of steps, where it should be; None where it is not."""
    candidate = grid.in_steps(one.candidate)
    if _peak(candidate - np.round(candidate)) > NEAR:
        return None
    values = grid.values or (one.made, *one.shaken)
    return _by_steps(candidate, grid, values) if values[0].shape == candidate.shape else None


def _by_steps(candidate: Array, grid: Grid, values: Sequence[Array]) -> float:
    """Numbers in steps, against what was rounded: as it is, and with noise."""
    value = grid.in_range(values[0])
    draws = [grid.in_range(draw) for draw in values[1:] if draw.shape == value.shape]
    noise = max((_peak(_difference(draw, value)) for draw in draws), default=0.0)
    room = 0.5 + grid.near + K * noise + noise_of(FORMATS["fp32"]) * _peak(value)
    return _ratio(_peak(candidate - value), room)


def _difference(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        found: Array = a.astype(np.float64) - b.astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0)


def _largest(a: Array, b: Array) -> float:
    return _peak(_difference(a, b)) if a.shape == b.shape else math.inf


def _peak(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0))


def _rms(array: Array) -> float:
    flat = array.reshape(-1)
    return math.sqrt(float(np.vdot(flat, flat)) / flat.size) if flat.size else 0.0


def _ratio(found: float, limit: float) -> float:
    return 0.0 if found == 0 else found / limit if limit > 0 else math.inf
