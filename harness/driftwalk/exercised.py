"""What of a model a probe exercises: a pass says nothing about the rest.

`verify` looks at one run. Rows of an embedding that no token looked up, experts that no token was
routed to, a sliding window longer than the probe: all of it can be wrong, and every number agrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .adapter import Exercises
from .jsonable import Later, Share, Size
from .states import Probe

ROWS, WEIGHT_ROWS = "embedding rows", "weight rows"
POSITIONS, TOKEN_TYPES, EXPERTS, UNUSED = "positions", "token types", "experts", "unused"
PADDING, BATCH, WINDOW, CACHE = "padding", "batch", "window", "cache"
_EASIEST_FIRST = (PADDING, BATCH, TOKEN_TYPES, POSITIONS, WINDOW, ROWS)

NOT_RUN = (
    "What of the model the probe exercises is not known: the model itself was not run here, only "
    "states of it that were stored."
)


@dataclass(frozen=True)
class Touched:
    """One part of a model, and how much of it the probe used."""

    what: str
    """`embedding rows`, `positions`, `token types`, `experts`, `weight rows`; `unused` for weights
    that no operation read; `padding`, `batch`, `window` and `cache` for what was or was not run."""
    where: str
    """A module, a parameter, a setting of the config; for padding, the sides that have some."""
    used: int
    of: int
    shared: Later[bool] = False
    """Rows that were not looked up were read by another layer: a tied output layer."""
    advice: Later[str] = ""
    """What to add to the probe; empty where all of it was used, or no probe can use more."""

    @property
    def tried(self) -> bool:
        """Whether nothing of it was left out; a window must be shorter than the probe."""
        return self.used > self.of if self.what == WINDOW else self.used >= self.of


@dataclass(frozen=True)
class Driven:
    """One activation, and how far its units were driven.

    Nobody knows whether there is an input that drives a unit farther: no part of `covered`.
    """

    where: str
    """Its module; where it has none, the module that was called before it."""
    function: str
    units: int
    low: int
    """Units with an input below the bend of the function: below -3, or below 0 of a ReLU."""
    high: int
    """Units with an input above it."""
    largest: Size
    """The largest input, without its sign."""
    twice: int | None = None
    """Units whose largest input two probes or more came within a tenth of; None for one probe."""


@dataclass(frozen=True)
class Exercised:
    """What of the model took part in a run of the probe."""

    items: tuple[Touched, ...]
    weights: Share | None
    """The share of all weights that some operation read; None where that cannot be told."""
    unknown: Later[str] = ""
    """Why it cannot."""
    driven: Later[tuple[Driven, ...]] = ()
    """Activations that PyTorch was seen to call, in the order of their first calls."""

    def of(self, what: str) -> tuple[Touched, ...]:
        """The items of one kind."""
        return tuple(item for item in self.items if item.what == what)

    @property
    def shares(self) -> dict[str, float]:
        """How much of each kind of part was used; only kinds of which a probe can use more."""
        shares = {}
        for what in dict.fromkeys(item.what for item in self.items):
            if what not in (UNUSED, CACHE):
                parts = [(min(i.used, i.of + (what == WINDOW)), i.of) for i in self.of(what)]
                whole = sum(of + (what == WINDOW) for _, of in parts)
                shares[what] = sum(used for used, _ in parts) / whole if whole else 1.0
        return shares

    @property
    def covered(self) -> float | None:
        """One figure for all of it: the mean over the kinds of part; None where none is known."""
        shares = self.shares
        return sum(shares.values()) / len(shares) if shares else None

    @property
    def advice(self) -> tuple[str, ...]:
        """What to add to the probe, each thing once, the easiest first."""
        asked = sorted(self.items, key=lambda item: (*_EASIEST_FIRST, item.what).index(item.what))
        return tuple(dict.fromkeys(item.advice for item in asked if item.advice))


@runtime_checkable
class KnowsExercised(Protocol):
    """A model whose runs are watched anyway: it says what a probe used, if that probe was run."""

    def exercised_by(self, probe: Probe) -> Exercised | None: ...


@runtime_checkable
class AddsUp(Protocol):
    """A model that says what several probes used together."""

    def add_up(self) -> None:
        """From now on, keep what all runs use together."""

    def added_up(self) -> Exercised | None:
        """What they used; None where there was none."""


@runtime_checkable
class LooksUp(Protocol):
    """A model that adds to that what a run uses which is not watched, as far as hooks tell."""

    def looking_up(self, probes: Sequence[Probe]) -> AbstractContextManager[None]:
        """Of runs inside, on probes that are all there at the end."""


def exercised(model: object, backends: Iterable[object], probe: Probe) -> Exercised | None:
    """What the probe used, from a run that was made anyway; else from one more run of a backend.

    It never fails a run: what goes wrong is said in `unknown`.
    """
    try:
        seen = model.exercised_by(probe) if isinstance(model, KnowsExercised) else None
        for backend in backends:
            if seen is None and isinstance(backend, Exercises):
                seen = backend.exercised(probe)
    except Exception as error:
        return Exercised((), None, f"{type(error).__name__}: {error}"[:300])
    return seen
