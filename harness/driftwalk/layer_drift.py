"""One point of a run: what was found there, what was allowed, who is to blame. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from .jsonable import Beside, Later, Size, Sparse
from .measure.metric_list import Metrics
from .measure.norms import Norms
from .measure.tokens import TokenErrors
from .states import Point

INTRODUCED = "introduced "
"""Before the name of a norm: measured on what the layer made of its own input."""

Side = Literal["candidate", "reference"]
AtFault = Literal["candidate", "reference", "both"]
"""Whose error it is."""

PointVerdict = Literal["ok", "drift", "nonfinite", "shape", "missing", "extra", "unknown"]
"""`unknown`: bounds from a signature that neither pass nor fail."""


@dataclass(frozen=True)
class Allowed:
    """The tolerance an element had, and the one that would have let every element pass."""

    atol: Size
    rtol: Size
    scale: Size
    needed: Size
    """Times both numbers: the smallest tolerance that would pass."""
    k: Later[Size | None] = None
    """Calibrated: how many times the yardstick's error was allowed; atol is then in max-abs."""
    norm: Later[str] = "max_abs"
    """The norm in which the point came closest to, or went farthest past, its allowance."""
    side: Later[Side] = "candidate"
    """Calibrated: the side that came closest to it, or went farthest past."""

    @property
    def by_own_doing(self) -> bool:
        """Whether that was what the layer introduced, not the error that came out of it."""
        return self.norm.startswith(INTRODUCED)


Closer = Literal["candidate", "reference", "tie"]


@dataclass(frozen=True)
class TruthErrors:
    """Distances from the truth at one point (L2), and who is closer to it."""

    reference: Size
    candidate: Size
    yardstick: Size
    scale: Size
    ratio: Size
    """Candidate to yardstick, in the norm in which it matters most; the limit is k."""
    closer: Closer
    norms: Mapping[str, Norms]
    """Of the reference, the candidate, the yardstick, and of what was allowed."""


@dataclass(frozen=True)
class Blame:
    """The error of one layer, split (L2): what it made itself and what it was handed."""

    introduced: Size
    inherited: Size
    gain: Size
    """Inherited error over the error of the layer before: how much this layer amplifies."""
    ratio: Size
    """Introduced error over the yardstick's own, in the norm in which it is largest."""
    guilty: bool
    norms: Mapping[str, Norms]
    tokens: Later[TokenErrors | None] = None
    """The introduced error, token by token."""


@dataclass(frozen=True)
class ChannelErrors:
    """An error by channel: its root mean square over rows and positions."""

    of: int
    """How many channels there are."""
    rms: tuple[Size, ...]
    """One each, or the largest of as many neighbours as it takes to have a few hundred."""

    @property
    def step(self) -> int:
        """How many channels each of them stands for; the last may stand for fewer."""
        return -(-self.of // max(1, len(self.rms)))


@dataclass(frozen=True)
class Culprit:
    """Where inside the root cause: the smallest part that can be named, and a sentence."""

    module: str
    ratio: Size
    channel: int | None
    token: tuple[int, int] | None
    sentence: str
    channels: Later[ChannelErrors | None] = None
    """Where a channel is named: what it made itself, beside all others."""


@dataclass(frozen=True)
class Bounds:
    """What a signature says of a difference: not what it is, but between what it lies."""

    exact: bool
    """Equal bit by bit, by their hashes: no bound, a fact."""
    l2: Size
    """An unbiased estimate (of its square); nan where there is none."""
    l2_low: Size
    l2_high: Size
    max_abs_low: Size
    max_abs_high: Size
    needed_low: Size
    needed_high: Size
    """As `Allowed.needed`: drift above 1."""
    chance: Size
    """That a bound does not hold: for each point and either side."""


@dataclass(frozen=True)
class Dtypes:
    reference: str | None
    candidate: str | None


@dataclass(frozen=True)
class LayerDrift:
    """One point: what was found there, and what was allowed."""

    point: Annotated[Point, Beside("name")]
    index: int
    shape: tuple[int, ...]
    dtypes: Dtypes
    verdict: PointVerdict
    metrics: Metrics | None = None
    tolerance: Allowed | None = None
    truth: TruthErrors | None = None
    blame: Blame | None = None
    tokens: TokenErrors | None = None
    note: str = ""
    allowed: bool = False
    """A missing or extra point that a pattern allows."""
    bounds: Sparse[Bounds | None] = None
    """Where a side is a signature: the metrics are then the bounds that decided."""
    sides: Later[Mapping[str, Allowed]] = field(default_factory=dict)
    """Calibrated: how much of its own allowance each side used; `tolerance` is the worse one."""

    @property
    def ok(self) -> bool:
        return self.verdict == "ok" or self.allowed

    @property
    def sides_at_fault(self) -> frozenset[str]:
        """The sides that are beyond what is allowed them here, where that is known."""
        return frozenset(name for name, used in self.sides.items() if not used.needed <= 1)

    @property
    def at_fault(self) -> AtFault | None:
        """The same in one word."""
        return both_or_one(self.sides_at_fault)


def both_or_one(sides: Set[str]) -> AtFault | None:
    """One word for the sides that are at fault."""
    if len(sides) > 1:
        return "both"
    return next((side for side in get_args(Side) if side in sides), None)
