"""What became of a weight between two sides: names, sizes and places, never the numbers all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .jsonable import Size, Sparse
from .layer_drift import Dtypes, Side

WeightVerdict = Literal[
    "same", "cast", "differs", "transposed", "permuted", "shape", "missing", "extra", "absent"
]
"""`cast`: the same numbers, rounded to another dtype. `absent`: not to be found in a graph, whose
exporter may have folded it into another; that is no difference, and nothing was compared."""

Axis = Literal["", "rows", "columns"]
TiedOn = Literal["", "reference", "candidate"]


@dataclass(frozen=True)
class WorstEntry:
    """The entry that differs most; the first one that is NaN or infinite on one side only."""

    index: tuple[int, ...]
    reference: float
    candidate: float


@dataclass(frozen=True)
class WeightChange:
    """One weight on two sides: `name` is the reference's name for it, `other` the candidate's."""

    name: str
    other: str
    verdict: WeightVerdict
    matched: Literal["name", "content", ""] = "name"
    """How its partner was found; empty where it has none."""
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    dtypes: Dtypes = field(default_factory=lambda: Dtypes(None, None))
    turned: bool = False
    """Whether the candidate's was transposed before the two were compared."""
    rel_l2: Size = 0.0
    max_abs: Size = 0.0
    differing: int = 0
    total: int = 0
    """Entries that differ, and all of them."""
    worst: Sparse[WorstEntry | None] = None
    place: Sparse[str] = ""
    """Where all differences lie, if not all over: `[7, 11]`, `[3, :]`, `[:, 11]`."""
    factor: Sparse[float | None] = None
    """The one number by which all that differs was multiplied, ..."""
    offset: Sparse[float | None] = None
    """... or that was added to it."""
    axis: Sparse[Axis] = ""
    """Along which it was permuted, ..."""
    order: Sparse[str] = ""
    """... and how, in words."""
    tied: Sparse[TiedOn] = ""
    """The one side on which it shares its memory with another weight."""

    @property
    def ok(self) -> bool:
        return self.verdict in ("same", "cast", "absent")

    @property
    def compared(self) -> bool:
        return self.verdict not in ("missing", "extra", "absent")


@dataclass(frozen=True)
class WeightFindings:
    """What a drift report says of weights: those of the root cause, or all of a small model."""

    side: Side
    """Whose weights were compared with the model's."""
    compared: int
    """Weights that were compared ..."""
    inside: int
    """... of which so many lie in the root cause, ..."""
    unmatched: int
    """... which has so many more that have no partner."""
    changes: tuple[WeightChange, ...]
    """Those that differ, the cause first."""
    cause: str = ""
    """The weight that explains the drift; empty where none does."""

    @property
    def guilty(self) -> WeightChange | None:
        """The change that explains the drift."""
        named = (one for one in self.changes if self.cause and one.name == self.cause)
        return next(named, None)
