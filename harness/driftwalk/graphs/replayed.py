"""Tensors of a graph that was replayed, and the noise that it is replayed with. Data only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..dtypes import FORMATS, Array, Format

NEAR = 2.0**-8
"""How near the middle between two steps a number is a matter of rounding, in steps."""
NEAR_SOFTMAX = 2.0**-3
"""The same for a softmax, which runtimes compute in whole numbers throughout."""


def noise_of(known: Format) -> float:
    """How far each element is moved to measure the noise, at most, relative to its size.

    In half precision sums are formed in float32 and rounded once; in float32 the order of a long
    sum costs several units.
    """
    return (8 if known.roundoff <= FORMATS["fp32"].roundoff else 2) * known.roundoff


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
    near: float = NEAR

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
