"""What a state sees and what sees it, as data: one number for each pair of states.

    influence(a -> b)   =   |d h_b / d h_a|_F / sqrt(width)

the Frobenius norm of the derivative of one state by another, in units in which the identity is 1:
by so much a small change of h_a, in a random direction, has grown (root mean square) at h_b.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from ...dtypes import Array
from ...errors import UsageError
from .common import Study

CODES = 1 << 16
Normalisation = Literal["raw", "layer", "norm"]


@dataclass(frozen=True)
class Pairs:
    """Numbers above or at zero, on a scale of logarithms: code 0 is 0, the others count `step`s.

    In order: for each target point but the first, each position of it, each point before, and each
    position of that. Little-endian 16-bit numbers, in base64.
    """

    low: float
    """log10 of what code 1 stands for."""
    step: float
    codes: str

    @classmethod
    def of(cls, influence: Array) -> Pairs:
        """`influence` is [target point, target position, source point, source position]."""
        flat = np.concatenate([influence[n, :, :n].ravel() for n in range(1, len(influence))])
        logs = np.log10(flat[flat > 0]) if (flat > 0).any() else np.zeros(1)
        low, high = float(logs.min()), float(logs.max())
        step = max((high - low) / (CODES - 2), 1e-9)
        codes = np.zeros(flat.shape, "<u2")
        codes[flat > 0] = np.round((logs - low) / step).astype(np.int64) + 1
        return cls(low, step, base64.b64encode(codes.tobytes()).decode())

    def array(self, points: int, positions: int) -> Array:
        """Back to [target point, target position, source point, source position]."""
        expected = positions * positions * points * (points - 1) // 2
        try:
            codes = np.frombuffer(base64.b64decode(self.codes, validate=True), "<u2")
        except ValueError as error:
            raise UsageError(f"Not a driftwalk result: pairs.codes: {error}.") from None
        if codes.size != expected:
            raise UsageError(
                f"Not a driftwalk result: pairs.codes holds {codes.size} numbers; {points} points "
                f"of {positions} positions have {expected}."
            )
        flat = np.where(codes > 0, 10 ** (self.low + (codes.astype(float) - 1) * self.step), 0.0)
        influence = np.zeros((points, positions, points, positions))
        start = 0
        for n in range(1, points):
            part = flat[start : start + positions * n * positions]
            influence[n, :, :n] = part.reshape(positions, n, positions)
            start += part.size
        return influence


@dataclass(frozen=True)
class Leak:
    """Influence from a later token on an earlier one, where there must be none."""

    pairs: int
    """How many pairs of states have one."""
    source: str
    source_position: int
    target: str
    target_position: int
    influence: float
    """The largest of them."""


@dataclass(frozen=True, kw_only=True)
class Visibility(Study):
    """The influence of every state of one stack on every later one, for one text."""

    kind: ClassVar[str] = "visibility"

    text: str
    tokens: tuple[str, ...]
    points: tuple[str, ...]
    """`embed` first: rows of every heatmap, from the bottom up."""
    stack: str
    point: str
    position: int
    """The state that was asked for."""
    width: int
    directions: int
    """Random directions that each norm was estimated from; `width` of them make it exact."""
    error: float | None
    """A typical standard error of one influence, relative to it; None where one direction alone
    cannot tell."""
    norms: tuple[tuple[float, ...], ...]
    """The norm of every state."""
    pairs: Pairs
    causal: bool | None
    """Whether the model says that no state depends on later tokens; None where it says nothing."""
    leak: Leak | None = None
    """The largest influence of a later token on an earlier one, in whatever model."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        shape = [len(self.tokens)] * len(self.points)
        at_home = self.point in self.points and 0 <= self.position < len(self.tokens)
        if [len(row) for row in self.norms] != shape or not at_home or self.width < 1:
            raise UsageError(
                f"Not a driftwalk result: {self.point!r} at position {self.position} of "
                f"{len(self.points)} points and {len(self.tokens)} tokens."
            )

    @property
    def failed(self) -> str:
        if not self.causal or self.leak is None:
            return ""
        at = self.leak
        return (
            f"the model is causal, but {at.target} at position {at.target_position} depends on "
            f"{at.source} at position {at.source_position} (influence {at.influence:.3g}); "
            f"{at.pairs} pair{'s' if at.pairs != 1 else ''} of states look ahead."
        )

    @cached_property
    def influence(self) -> Array:
        """[target point, target position, source point, source position]."""
        return self.pairs.array(len(self.points), len(self.tokens))

    def cone(
        self,
        point: str | None = None,
        position: int | None = None,
        normalisation: Normalisation = "raw",
    ) -> Array:
        """What one state sees (rows below it) and what sees it (above), [point, position].

        `raw` is the influence; `layer` divides each row by its largest; `norm` is relative, the
        relative change of the one for a relative change of the other.
        """
        row = self.points.index(self.point if point is None else point)
        at = self.position if position is None else position
        seen: Array = self.influence[row, at].copy()
        seen[row + 1 :] = self.influence[row + 1 :, :, row, at]
        if normalisation == "norm":
            sizes = np.array(self.norms)
            own = sizes[row, at]
            with np.errstate(divide="ignore", invalid="ignore"):
                factor = np.where(np.arange(len(sizes))[:, None] < row, sizes / own, own / sizes)
            seen = np.where(seen > 0, seen * factor, 0.0)
        elif normalisation == "layer":
            most = seen.max(axis=1, keepdims=True)
            seen = np.divide(seen, most, out=np.zeros_like(seen), where=most > 0)
        seen[row, at] = 1.0  # its own derivative by itself
        return seen

    def reach(self) -> Array:
        """How much the last point, all its positions together, depends on each state."""
        reach: Array = np.sqrt(np.square(self.influence[-1]).sum(axis=0))
        reach[-1] = 1.0
        return reach

    @property
    def exact(self) -> bool:
        return self.directions >= self.width
