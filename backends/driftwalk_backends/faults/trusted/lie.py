"""What a lie is, what lies are made from, and how the fault is chosen that goes with one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from random import Random
from typing import Any, Literal, TypeVar

from torch import nn

from driftwalk.adapter import Backend
from driftwalk.registry import create
from driftwalk.states import Probe

from ...anatomy import Anatomy
from ...loaded import LoadedModel
from ..fault import Fault, Subject
from ..graph import faulty_backend
from ..planning import FaultyModel, draws

T = TypeVar("T")
Liar = Literal["candidate", "reference", "both", "nobody"]

FAULTS: tuple[tuple[str, Any], ...] = (
    ("scaled_weight", 1e-2),
    ("zeroed_head", None),
    ("stale_layer", None),
    ("wrong_activation", None),
    ("transposed_weight", None),
    ("dropped_bias", None),
    ("scaled_weight", 1e-1),
)
"""The kinds and variants of fault that lies are told about."""
CLEAR = 3.0
"""Times what is allowed: it is the lie that is tried, not how small a fault the gate can see."""
TRIED = 24
"""So many faults are weighed, at most, until one is found that honest arithmetic does not hide."""


@dataclass(frozen=True)
class Weighed:
    """A fault, and what it does at the point that is right for it."""

    fault: Fault
    right: str
    excess: float
    """The effect over what honest arithmetic is allowed there."""
    effect: float
    """In float64, relative to the state (L2)."""

    @property
    def points(self) -> tuple[str, ...]:
        return (self.right,)


@dataclass(frozen=True, eq=False)
class Setup:
    """What `verify` is called with, and what it must find."""

    model: LoadedModel
    candidate: object
    probe: Probe
    wrong: Liar
    """Who computes something else than the model; `nobody`: only a witness lies."""
    points: tuple[str, ...] = ()
    """Where the root cause may be found."""
    reference: object = "torch"
    before: LoadedModel | None = None
    """An earlier version of the model, of which all is stored that can be."""


@dataclass(frozen=True, eq=False)
class Lie:
    """One lie; `build` sets it up when its turn comes, so that one copy is held at a time."""

    kind: str
    description: str
    build: Callable[[], Setup]


Teller = Callable[["Ground"], Iterator[Lie]]
"""Tells lies of one kind, the most telling first; raises `Absent` where there is no room."""


class Absent(Exception):  # noqa: N818 - a fact about a model, no error
    """This model has no room for a lie; the text says why."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What lies are made from: a model, a probe, and a candidate that is right."""

    model: LoadedModel
    probe: Probe
    anatomy: Anatomy
    candidate: Backend
    seed: int
    weigh: Callable[[FaultyModel, str], Weighed | None]
    """What a fault does in float64, compared with honest arithmetic of a dtype; None: nothing."""
    is_plain: Callable[[Backend], bool]
    """Whether the dtype table alone shows that a candidate is wrong."""

    @property
    def dtype(self) -> str:
        return self.candidate.info.dtype

    @property
    def runs_modules(self) -> bool:
        """Whether the candidate is PyTorch itself, which runs any module as it is."""
        return self.candidate.name in ("torch", "emulated")

    def owed(
        self,
        salt: str,
        dtypes: tuple[str, ...] = (),
        *,
        first: int = 0,
        plain: bool = False,
        within: Collection[str] = (),
    ) -> Weighed:
        """A fault that the gate must catch in each of these dtypes; the candidate's own, if none.

        `first` says which kind of fault is looked for first. A `plain` one shows without witnesses:
        where these are not trusted, the dtype table is all that is left. `within` are the points at
        which it may be right; all, if none.
        """
        subject = Subject.of(self.model, self.anatomy, self.dtype)
        lines = [
            draws(subject, kind, variant, f"{self.seed}|{salt}")
            for kind, variant in rotated(FAULTS, first)
        ]
        # Two of the kind that comes first, then every kind in turn.
        turns = chain(islice(lines[0], 2), chain.from_iterable(zip_longest(*lines)))
        fitting = (f for f in turns if f and not (within and set(f.points).isdisjoint(within)))
        for fault in islice(fitting, TRIED):
            faulty = FaultyModel(self.model, fault)
            weighed = [self.weigh(faulty, dtype) for dtype in dtypes or (self.dtype,)]
            if not all(one is not None and one.excess > CLEAR for one in weighed):
                continue
            if not plain or self.is_plain(faulty_backend(self.candidate, faulty, self.probe)):
                assert weighed[0] is not None
                return weighed[0]
        raise Absent("no fault was found that honest arithmetic would not hide")

    def faulty(self, fault: Fault) -> Backend:
        """The candidate with a fault."""
        return faulty_backend(self.candidate, FaultyModel(self.model, fault), self.probe)

    def running(self, module: nn.Module) -> Backend:
        """The candidate's runtime with another module."""
        return create(self.candidate.spec, LoadedModel(module, "a faulty copy"))

    def setup(
        self,
        candidate: object,
        wrong: Liar = "candidate",
        points: tuple[str, ...] = (),
        **more: Any,
    ) -> Setup:
        """The model and the probe as they are, with another candidate."""
        return Setup(self.model, candidate, self.probe, wrong, points, **more)

    def random(self, salt: str) -> Random:
        return Random(f"{self.seed}|{salt}")


def rotated(items: Sequence[T], first: int) -> list[T]:
    """All items, from another one on."""
    start = first % len(items)
    return [*items[start:], *items[:start]]
