"""What became of the choices inside a model: experts, queries, ranks. Numbers and names only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .jsonable import Share, Size, Sparse

RoutingVerdict = Literal["same", "ties", "open", "change", "weights", "handed down", "not seen"]
"""`same`: the candidate chose as the truth does. `ties`: otherwise, and only where honest
arithmetic may, and it is right in all else. `open`: the same, but something else is not right, the
scores that it chose by or its states. `change`: a router chose otherwise than its input leads to.
`weights`: it chose right, and counts what it chose otherwise. `handed down`: choices changed since
what came before them is wrong. `not seen`: what the candidate chose could not be told."""


@dataclass(frozen=True)
class Flips:
    """The decisions of one side at one place that are not the truth's."""

    others: int
    """How many are others than the truth's; each is one of the following."""
    ties: int
    """Two scores are closer than honest arithmetic tells apart."""
    followed: int
    """What the truth itself chooses there, once it chose as this side did before."""
    changes: int
    """Neither: no noise explains them."""


@dataclass(frozen=True)
class Decided:
    """One place in a model where something is chosen: a router's top-k in one layer."""

    point: str
    module: str
    op: str
    best: int
    """How many are chosen ..."""
    of: int
    """... of how many."""
    decisions: int
    """How many times: for a router, tokens."""
    close: int
    """How many of the truth's decisions lie within the noise: a flip of these is a tie."""
    margin: Size | None
    """How far the middle one is from flipping, in units of the noise; None: no other choice."""
    candidate: Flips | None = None
    """None where it could not be seen."""
    reference: Flips | None = None

    @property
    def share(self) -> float:
        """The part of the decisions that hangs on noise."""
        return self.close / self.decisions if self.decisions else 0.0


@dataclass(frozen=True)
class RoutingPart:
    """The candidate's error at one point, told apart; relative L2."""

    point: str
    routing: Size
    """The truth with the candidate's choices, minus the truth."""
    arithmetic: Size
    """The candidate minus the truth with the candidate's choices ..."""
    allowed: Size
    """... and what that may be."""
    used: Size
    """The part of its allowance that the arithmetic uses, in the norm that uses most."""


@dataclass(frozen=True)
class RouterFault:
    """A router that computes something else, given the very input that the candidate gave it."""

    point: str
    module: str
    kind: Literal["choice", "weights"]
    tokens: int
    """Decisions that no noise explains; of a fault in weights, all that were made."""
    of: int
    ratio: Size
    """How many times as far as noise explains: scores from flipping back, or weights apart."""
    best: int
    """How many the candidate chooses ..."""
    expected: int
    """... and how many it should."""


@dataclass(frozen=True)
class Routing:
    """All that a model chose, held against what the truth chooses."""

    verdict: RoutingVerdict
    dtype: str
    """Whose noise decides what is a tie."""
    seen: Literal["recorded", "implied", ""]
    """How the candidate's choices are known: as it made them; or as the truth makes them from the
    candidate's states, layer by layer; or not at all."""
    places: tuple[Decided, ...]
    parts: Sparse[tuple[RoutingPart, ...]] = ()
    """Point by point, where the candidate chose otherwise than the truth."""
    excused: Sparse[tuple[str, ...]] = ()
    """Points beyond their allowance for a tie alone: with the same choices they are within it."""
    fault: Sparse[RouterFault | None] = None

    @property
    def hanging(self) -> Share:
        """The part of all decisions that hangs on noise."""
        decisions = sum(place.decisions for place in self.places)
        return sum(place.close for place in self.places) / decisions if decisions else 0.0
