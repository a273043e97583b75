"""Dtypes point by point: what a side computes in where it is not one dtype throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from .dtypes import FORMATS, Format
from .states import BackendInfo

OWN = "own"
"""A side's flag `convolutions`: they are a CPU's own, whose sums are in half precision, too."""
FROM_BIAS = "from-bias"
"""A side's flag `sums`: those of a linear layer begin with the bias, and are rounded each time."""
UNROUNDED = "unrounded"
"""A side's flag `casts`: what goes from half precision to float may do so before it is rounded."""


@dataclass(frozen=True)
class Mixture:
    """The dtypes a side computes in; one dtype throughout where `dtypes` is empty."""

    dtype: str
    """The coarsest of them."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    """The dtype a state is handed on in, where that is coarser than what made it."""
    convolutions: str = ""
    """`own`, or nothing: sums in float32."""
    sums: str = ""
    """`from-bias`, or nothing: as PyTorch's own, which add the bias to the finished sum."""
    casts: str = ""
    """`unrounded`, or nothing: a state is handed on as it is seen."""

    @classmethod
    def of(cls, given: str | BackendInfo | Mixture) -> Mixture:
        """The mixture of a side, or of a dtype alone."""
        if isinstance(given, str):
            return cls(given)
        if isinstance(given, Mixture):
            return given
        how = (given.flags.get(name, "") for name in ("convolutions", "sums", "casts"))
        return cls(given.dtype, given.dtypes, given.stored, *how)

    def at(self, point: str) -> str:
        """What a point computes in; a part of a layer in what the layer does."""
        while point:
            if point in self.dtypes:
                return self.dtypes[point]
            point = point.rpartition(".")[0]
        return self.dtype

    def handed_on_in(self, point: str) -> str:
        """What a state is rounded to before the next point is made of it."""
        return self.stored.get(point) or self.at(point)

    def up_to(self, points: Iterable[str]) -> dict[str, Format]:
        """The coarsest format at each point or before it; `points` in order of execution.

        A format that is not known counts for nothing.
        """
        coarsest = FORMATS["fp64"]
        so_far: dict[str, Format] = {}
        for point in points:
            own = FORMATS.get(self.at(point), coarsest)
            so_far[point] = coarsest = max(coarsest, own, key=lambda form: form.roundoff)
        return so_far

    def no_coarser_than(self, other: Mixture) -> Callable[[str], bool]:
        """At which points this one's own noise is no larger than the other's."""

        def holds(point: str) -> bool:
            ours, theirs = FORMATS.get(self.at(point)), FORMATS.get(other.at(point))
            return ours is None or theirs is None or ours.roundoff <= theirs.roundoff

        return holds

    def __str__(self) -> str:
        """`bf16`, or `fp32 (embed to layer.1), bf16 (layer.2 to layer.3), fp32 (logits)`."""
        if not self.dtypes:
            own = " with its own convolutions" if self.convolutions else ""
            return self.dtype + own + (" with sums from the bias" if self.sums else "")
        words = []
        for dtype, run in groupby(self.dtypes, key=self.dtypes.__getitem__):
            first, *others = run
            words.append(f"{dtype} ({first} to {others[-1]})" if others else f"{dtype} ({first})")
        words += [f"{point} handed on in {dtype}" for point, dtype in self.stored.items()]
        words += ["casts left out"] if self.casts else []
        return ", ".join(words)


def nominal_formats(points: Iterable[str], *sides: BackendInfo) -> dict[str, tuple[Format, ...]]:
    """What took part in each state: of every side, the coarsest format up to there."""
    names = list(points)
    formats = [Mixture.of(side).up_to(names) for side in sides if side.dtype in FORMATS]
    return {name: tuple(of_side[name] for of_side in formats) for name in names}
