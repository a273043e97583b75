"""The outcomes of studies, frozen: numbers and names, read without what measures them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import numpy as np

from ...adapter import BackendInfo
from ...document import Document
from ...dtypes import Array
from ...errors import UsageError
from ...jsonable import Beside
from ...measure.tokens import TokenErrors
from ...states import Point

CODES = 1 << 16
Normalisation = Literal["raw", "layer", "norm"]
Spot = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Study(Document):
    """A document about one model on one backend."""

    backend: BackendInfo

    @property
    def failed(self) -> str:
        """The finding that makes the command leave with exit code 1, as a sentence; or nothing."""
        return ""


# ---- contrast: how far two inputs are apart, and how much of that a backend drifts ----
#
# All numbers are lengths of differences in the state's own units. `l2`, `mean` and `std` stand for
# one token each: [row][token], None where a row has fewer tokens than another.


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
        return {layer.point.name: layer for layer in self.layers}[name]


# ---- geometry: where sentences lie at each layer, and whether they stay ----


@dataclass(frozen=True)
class Agreement:
    """Two clouds of the same sentences at one point."""

    knn_overlap: float
    cka: float
    procrustes: float
    displacement: float | None
    """How far a sentence moved, in units of how far sentences lie from their centre; None where
    they all lie in one place."""


@dataclass(frozen=True)
class GeometryLayer:
    """One point: its sentences in two dimensions, and numbers in all of them."""

    point: Annotated[Point, Beside("name")]
    width: int
    reference: tuple[Spot, ...]
    explained: Spot | None
    """The part of the variance that each axis shows; none with UMAP."""
    separation: float | None
    """Mean silhouette of the labels on the backend; None with a single label."""
    candidate: tuple[Spot, ...] | None = None
    candidate_separation: float | None = None
    agreement: Agreement | None = None
    broken: int = 0
    """Sentences that are NaN or Inf on the candidate; then nothing else is said of it here."""


@dataclass(frozen=True, kw_only=True)
class Geometry(Study):
    """What `geometry` returns."""

    kind: ClassVar[str] = "geometry"
    dataset: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    pooling: str
    projection: str
    k: int
    """How many neighbours `knn_overlap` looks at."""
    candidate: BackendInfo | None = None
    layers: tuple[GeometryLayer, ...]

    @property
    def failed(self) -> str:
        bad = next((layer for layer in self.layers if layer.broken), None)
        if bad is None or self.candidate is None:
            return ""
        return (
            f"{self.candidate.spec} gives NaN or Inf for {bad.broken} of {len(self.texts)} "
            f"sentences, first at {bad.point.name}."
        )

    @property
    def least_overlap(self) -> GeometryLayer | None:
        """Where the fewest neighbours stay."""
        compared = [(x.agreement.knn_overlap, x) for x in self.layers if x.agreement is not None]
        return min(compared, key=lambda pair: pair[0], default=(1.0, None))[1]

    def layer(self, name: str) -> GeometryLayer:
        return {layer.point.name: layer for layer in self.layers}[name]


# ---- visibility: what a state sees and what sees it, one number for each pair of states ----
#
#    influence(a -> b)   =   |d h_b / d h_a|_F / sqrt(width)
#
# the Frobenius norm of the derivative of one state by another, in units in which the identity is 1:
# by so much a small change of h_a, in a random direction, has grown (root mean square) at h_b.


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
