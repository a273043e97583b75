"""The outcome of a contrast: how far two inputs are apart, and how much of that a backend drifts.

All numbers are lengths of differences in the state's own units. `l2`, `mean` and `std` stand for
one token each: [row][token], None where a row has fewer tokens than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from ...adapter import BackendInfo
from ...jsonable import Beside
from ...measure.tokens import TokenErrors
from ...states import Point
from .common import Study


@dataclass(frozen=True)
class AlignedRow:
    """Two sentences, token beside token, up to the end of the shorter one."""

    texts: tuple[str, str]
    first: tuple[str, ...]
    second: tuple[str, ...]
    """Names of the tokens; empty where they have none."""
    differs: tuple[bool, ...]
    """Where the inputs are not the same; empty where inputs have no tokens."""
    lengths: tuple[int, int]

    @property
    def start(self) -> int | None:
        """The first token that differs."""
        return next((i for i, differs in enumerate(self.differs) if differs), None)

    @property
    def unpaired(self) -> int:
        return abs(self.lengths[0] - self.lengths[1])


@dataclass(frozen=True)
class ContrastLayer:
    """One point: the difference between the two inputs there."""

    point: Annotated[Point, Beside("name")]
    l2: TokenErrors
    mean: Sequence[Sequence[float | None]]
    std: TokenErrors
    distance: float
    """The root mean square of `l2` over the tokens that can differ."""
    drift: float | None = None
    """The candidate's distance from the backend: likewise, over both inputs."""
    share: float | None = None
    """Drift over distance: drift in units of meaning."""


@dataclass(frozen=True, kw_only=True)
class Contrast(Study):
    """What `contrast` returns."""

    kind: ClassVar[str] = "contrast"
    rows: tuple[AlignedRow, ...]
    hashes: tuple[str, str]
    """Of both probes."""
    causal: bool | None
    """Whether a state must not see later tokens; None where that cannot be said."""
    causal_by: str
    """How that is known."""
    finding: str = ""
    """Where a causal model's states depend on later tokens all the same, as a sentence."""
    candidate: BackendInfo | None = None
    layers: tuple[ContrastLayer, ...]

    @property
    def failed(self) -> str:
        return self.finding

    @property
    def largest_share(self) -> ContrastLayer | None:
        """Where the drift is the largest part of the distance."""
        shared = [layer for layer in self.layers if layer.share is not None]
        return max(shared, key=lambda layer: layer.share or 0.0, default=None)

    def layer(self, name: str) -> ContrastLayer:
        for layer in self.layers:
            if layer.point.name == name:
                return layer
        raise KeyError(name)
