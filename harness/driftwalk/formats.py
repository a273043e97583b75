"""What a quantised candidate declares, and what its format costs. Numbers and names only.

    candidate - truth  =  (declared - truth)  +  (candidate - declared)
                           what the format costs     what the kernel adds: arithmetic, or a bug

*Declared* is the float64 run of the model with the weights and the rounding that the artefact
declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .jsonable import Size
from .measure.decisions import Decisions


@dataclass(frozen=True)
class StoredAs:
    """Weights that are stored alike."""

    kind: str
    """The format of their numbers: int8, int4, fp8 (e4m3)."""
    block: str
    """What shares one step: a row, 32 numbers of a row, the whole matrix."""
    inputs: str
    """How the inputs of their products are rounded; empty where they are not."""
    weights: int
    elements: int
    bytes: int
    """What they take, their steps included."""


@dataclass(frozen=True)
class Misstored:
    """A weight of an artefact that is no rounding of the model's."""

    sentence: str
    beyond: Size
    """How many times the half step, by which a rounding may be off, its worst number is off."""


@dataclass(frozen=True)
class Declared:
    """What was read from a quantised artefact."""

    stored: tuple[StoredAs, ...]
    tips: bool
    """Whether numbers are rounded while it runs, so that one may tip over to the next by chance."""
    ties: bool = False
    """Whether the largest number of each row lies half-way between two, so that many may."""
    wrong: Mapping[str, Misstored] = field(default_factory=dict)
    """By module: stored weights that are no rounding of the model's."""
    own_way: tuple[str, ...] = ()
    """Modules whose weights were not rounded to the nearest number, on purpose."""
    in_float: tuple[str, ...] = ()
    """Modules whose matrices are not rounded."""


@dataclass(frozen=True)
class FormatCost:
    """An error split in two (L2): what the format costs, and what the kernel adds."""

    format: Size
    kernel: Size
    cosine: Size
    """How far the two point the same way: total^2 = format^2 + kernel^2 + 2 cosine format kernel"""
    scale: Size
    """The size of the truth."""

    @property
    def total(self) -> float:
        """The candidate's distance from the truth."""
        both = 2 * self.cosine * self.format * self.kernel
        return float(max(0.0, self.format**2 + self.kernel**2 + both) ** 0.5)


@dataclass(frozen=True)
class FormatFindings:
    """What a report says of the candidate's format."""

    stored: tuple[StoredAs, ...]
    layers: Mapping[str, FormatCost]
    """By the name of the point."""
    decisions: Decisions | None = None
    """What the format alone does to the model's choices: the declared model against the truth."""
    wrong: Mapping[str, Misstored] = field(default_factory=dict)
    """By module: stored weights that are no rounding of the model's; their layers have drift."""
    own_way: tuple[str, ...] = ()
    in_float: tuple[str, ...] = ()
