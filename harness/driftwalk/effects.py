"""What `verify --contrast`, `--propagation` and `--patch` add to a report, as data.

Meaning      the drift over the distance between two inputs that mean different things
Patching     the decisions that one restored layer brings back: where errors stop mattering
Propagation  what linear theory says a drift becomes, and what it became:

d_n  =  J_n d_{n-1}  +  introduced_n          J_n: the derivative of the truth's block n at x

predicted   |J_n d_{n-1}|                     from all that was introduced before, and no state
measured    |X_n(c_{n-1}) - x_n|              what the block made of the candidate's state
step        |J_n (c_{n-1} - x_{n-1})|         the same, one block at a time
source      |J_n ... J_{m+1} introduced_m|    from one layer's own error alone
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .jsonable import Size
from .judge.constants import EFFECT_OFF, EFFECT_TIMES
from .measure.norms import ratio

Finding = Literal["nothing", "follows", "added", "nonlinear", "nonfinite"]


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


@dataclass(frozen=True)
class Patch:
    """The reference's state put into the candidate at one point."""

    point: str
    flips: int
    """Positions where the argmax still differs from the reference's."""


@dataclass(frozen=True)
class Patching:
    """The decision-level blame curve: one run of the candidate for each point."""

    positions: int
    flips: int
    """Without a patch."""
    patches: tuple[Patch, ...]
    seconds: float = 0.0

    @property
    def runs(self) -> int:
        return len(self.patches) + 1

    def removed(self, patch: Patch) -> int:
        return self.flips - patch.flips

    @property
    def stops_at(self) -> str | None:
        """The first point from which on no patch leaves a flip.

        What goes wrong after it changes no decision; what goes wrong up to it does.
        """
        last = next((i for i in range(len(self.patches), 0, -1) if self.patches[i - 1].flips), 0)
        return self.patches[last].point if last < len(self.patches) else None


@dataclass(frozen=True)
class Carried:
    """The inherited drift at one point (L2), predicted and measured."""

    point: str
    measured: Size
    predicted: Size
    off: Size
    """The norm of their difference over the measured norm: 0 where direction and size agree."""
    step: Size
    source: Size
    introduced: Size
    """What the point itself adds."""

    @property
    def ratio(self) -> float:
        return ratio(self.predicted, self.measured)

    @property
    def finding(self) -> Finding:
        """What the two numbers say together.

        `follows`: small errors, carried along. `added`: small errors too, but most of the drift is
        not the source's: layers after it add their own. `nonlinear`: no longer a small error.
        """
        if not all(map(math.isfinite, (self.measured, self.predicted, self.off))):
            return "nonfinite"
        if self.measured == 0 and self.predicted == 0:
            return "nothing"
        if not 1 / EFFECT_TIMES <= self.ratio <= EFFECT_TIMES or self.off > EFFECT_OFF:
            return "nonlinear"
        return "added" if 0 < self.source < self.measured / EFFECT_TIMES else "follows"


@dataclass(frozen=True)
class Propagation:
    """The drift of one candidate, carried through the truth's Jacobian."""

    source: str
    """The layer whose own error is also followed alone: the root cause; empty without one."""
    layers: tuple[Carried, ...]
    seconds: float = 0.0

    def first(self, finding: Finding) -> Carried | None:
        """The first point of which that is said."""
        return next((layer for layer in self.layers if layer.finding == finding), None)

    @property
    def worst_ratio(self) -> float:
        """The ratio farthest from one, either way; 1 where nothing was carried."""
        told = [layer.ratio for layer in self.layers if layer.finding != "nothing"]
        return max(
            told, key=lambda r: abs(math.log(r)) if 0 < r < math.inf else math.inf, default=1
        )
