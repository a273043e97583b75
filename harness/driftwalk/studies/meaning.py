"""Drift in units of meaning: a drift over the distance between two inputs that mean different
things. What a report stores of it; units.py measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..jsonable import Size


@dataclass(frozen=True)
class Meaning:
    """Two inputs, and how far they are apart on the reference, by point."""

    first: str
    second: str
    distances: Mapping[str, Size]
    """Root mean square per token that can differ."""
    shares: Mapping[str, Size]
    """The candidate's drift per token, over that distance; not where there is none."""

    @property
    def largest(self) -> tuple[str, float] | None:
        """Where the drift is the largest part of the distance."""
        return max(self.shares.items(), key=lambda item: item[1], default=None)
