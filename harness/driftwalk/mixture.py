"""Dtypes point by point: what a side computes in where it is not one dtype throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType

from .dtypes import FORMATS, Format
from .states import BackendInfo

ALIKE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Mixture:
    """The dtypes a side computes in; one dtype throughout where `dtypes` is empty."""

    dtype: str
    """The coarsest of them."""
    dtypes: Mapping[str, str] = field(default_factory=lambda: ALIKE)
    stored: Mapping[str, str] = field(default_factory=lambda: ALIKE)
    """The dtype a state is handed on in, where that is coarser than what made it."""

    @classmethod
    def of(cls, given: str | BackendInfo | Mixture) -> Mixture:
        """The mixture of a side, or of a dtype alone."""
        if isinstance(given, str):
            return cls(given)
        return given if isinstance(given, Mixture) else cls(given.dtype, given.dtypes, given.stored)

    def at(self, point: str) -> str:
        """What a point computes in; a part of a layer in what the layer does."""
        while point:
            if point in self.dtypes:
                return self.dtypes[point]
            point = point.rpartition(".")[0]
        return self.dtype

    def up_to(self, points: Iterable[str]) -> dict[str, Format]:
        """The coarsest format at each point or before it; `points` in order of execution.

        A format that is not known counts for nothing.
        """
        found: dict[str, Format] = {}
        coarsest = FORMATS["fp64"]
        for point in points:
            own = FORMATS.get(self.at(point), coarsest)
            coarsest = own if own.roundoff > coarsest.roundoff else coarsest
            found[point] = coarsest
        return found

    def no_coarser_than(self, other: Mixture) -> Callable[[str], bool]:
        """At which points this one's own noise is no larger than the other's."""

        def holds(point: str) -> bool:
            ours, theirs = FORMATS.get(self.at(point)), FORMATS.get(other.at(point))
            return ours is None or theirs is None or ours.roundoff <= theirs.roundoff

        return holds

    def __str__(self) -> str:
        """`bf16`, or `fp32 (embed to layer.1), bf16 (layer.2 to layer.3), fp32 (logits)`."""
        if not self.dtypes:
            return self.dtype
        told = [
            f"{dtype} ({_range([point for point, _ in run])})"
            for dtype, run in ((d, list(r)) for d, r in groupby(self.dtypes.items(), _second))
        ]
        told += [f"{point} handed on in {dtype}" for point, dtype in self.stored.items()]
        return ", ".join(told)


def nominal_formats(points: Iterable[str], *sides: BackendInfo) -> dict[str, tuple[Format, ...]]:
    """What took part in each state: of every side, the coarsest format up to there."""
    names = list(points)
    known = [Mixture.of(side) for side in sides if side.dtype in FORMATS]
    formats = [mixture.up_to(names) for mixture in known]
    return {name: tuple(found[name] for found in formats) for name in names}


def _second(pair: tuple[str, str]) -> str:
    return pair[1]


def _range(points: list[str]) -> str:
    return points[0] if len(points) == 1 else f"{points[0]} to {points[-1]}"
