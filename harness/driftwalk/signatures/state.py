"""What a signature says of one state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class Moments:
    """Of the finite elements that count."""

    mean: float
    mean_abs: float
    rms: float
    min: float
    max: float
    min_abs: float


@dataclass(frozen=True)
class StateSignature:
    """One state without its tensor. Padded positions are no part of any of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    """Of the bytes of the elements that count, little-endian."""
    counted: int
    nonfinite: int
    """How many of those are NaN or infinite; they are kept out of all that follows."""
    moments: Moments
    quantiles: tuple[float, ...]
    """At QUANTILES: elements, not values between two of them."""
    samples: tuple[float | None, ...]
    """The elements at seeded places; None where one is not finite."""
    projections: tuple[float, ...]
    unit: float
    """Every element was rounded to a multiple of this before it was projected."""
    module: str = ""

    @property
    def l2(self) -> float:
        return self.moments.rms * float(np.sqrt(max(0, self.counted - self.nonfinite)))
