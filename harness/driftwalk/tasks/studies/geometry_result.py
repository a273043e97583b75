"""The outcome of a geometry study: where sentences lie at each layer, and whether they stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ...adapter import BackendInfo
from ...jsonable import Beside
from ...states import Point
from .common import Study

Spot = tuple[float, float]


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
        compared = [layer for layer in self.layers if layer.agreement is not None]
        return min(compared, key=_overlap, default=None)

    def layer(self, name: str) -> GeometryLayer:
        for layer in self.layers:
            if layer.point.name == name:
                return layer
        raise KeyError(name)


def _overlap(layer: GeometryLayer) -> float:
    return layer.agreement.knn_overlap if layer.agreement else 1.0
