"""What a lie is, what lies are made from, and how the fault is chosen that goes with one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from random import Random
from typing import Any, Literal

from torch import nn

from driftwalk.adapter import Backend
from driftwalk.states import Probe

from ...anatomy import Anatomy
from ...loaded import LoadedModel
from ..fault import Fault, Subject
from ..graph import faulty_backend
from ..planning import FaultyModel, draws
from ..weights import BITS

Liar = Literal["candidate", "reference", "both", "nobody"]

MATRIX, LARGE_MATRIX = ("scaled_weight", 1e-2), ("scaled_weight", 1e-1)
STRUCTURAL = (
    ("zeroed_head", None),
    ("stale_layer", None),
    ("wrong_activation", None),
    ("transposed_weight", None),
    ("dropped_bias", None),
)
FAULTS: tuple[tuple[str, Any], ...] = (MATRIX, *STRUCTURAL, LARGE_MATRIX)
"""The kinds and variants of fault that lies are told about."""
CLEAR = 3.0
"""Times what is allowed: it is the lie that is tried, not how small a fault the gate can see."""
TRIED = 24
"""So many faults are weighed, at most, until one is found that honest arithmetic does not hide."""


@dataclass(frozen=True)
class Weighed:
    """A fault, the point that is right for it, and by how much it exceeds what is allowed there."""

    fault: Fault
    right: str
    excess: float


Weigh = Callable[[FaultyModel, str], Weighed | None]
"""What a fault does in float64, compared with honest arithmetic of a dtype; None: nothing."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What lies are made from: a model, a probe, and a candidate that is right."""

    model: LoadedModel
    probe: Probe
    anatomy: Anatomy
    candidate: Backend
    seed: int
    weigh: Weigh
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
    ) -> Weighed | None:
        """A fault that the gate must catch in each of these dtypes; the candidate's own, if none.

        `first` says which kind of fault is looked for first. A `plain` one shows without witnesses:
        where these are not trusted, the dtype table is all that is left. `within` are the points at
        which it may be right; all, if none.
        """
        subject = Subject(
            self.model.module, self.anatomy, self.dtype if self.dtype in BITS else "fp32"
        )
        kinds = [*FAULTS[first % len(FAULTS) :], *FAULTS[: first % len(FAULTS)]]
        lines = [draws(subject, kind, variant, f"{self.seed}|{salt}") for kind, variant in kinds]
        # Two of the kind that comes first, then every kind in turn.
        turns = chain(islice(lines[0], 2), chain.from_iterable(zip_longest(*lines)))
        fitting = (f for f in turns if f and not (within and set(f.points).isdisjoint(within)))
        for fault in islice(fitting, TRIED):
            faulty = FaultyModel(self.model, fault)
            found = [self.weigh(faulty, dtype) for dtype in dtypes or (self.dtype,)]
            if not all(one is not None and one.excess > CLEAR for one in found):
                continue
            if not plain or self.is_plain(faulty_backend(self.candidate, faulty, self.probe)):
                return found[0]
        return None

    def faulty(self, fault: Fault) -> Backend:
        """The candidate with a fault."""
        return faulty_backend(self.candidate, FaultyModel(self.model, fault), self.probe)

    def random(self, salt: str) -> Random:
        return Random(f"{self.seed}|{salt}")


@dataclass(frozen=True, eq=False)
class Case:
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
    """One lie; `build` makes the case when its turn comes, so that one copy is held at a time."""

    kind: str
    description: str
    build: Callable[[], Case]


class Absent(Exception):  # noqa: N818 - a fact about a model, no error
    """This model has no room for a lie; the text says why."""


Teller = Callable[[Ground], Iterator[Lie]]
"""Tells lies of one kind, the most telling first; raises `Absent` where there is no room."""

UNSEEN = "no fault was found that honest arithmetic would not hide"


def placed(weighed: Weighed) -> tuple[str, ...]:
    return (weighed.right,)


class OtherModel(LoadedModel):
    """A model that is walked at the points of another, whose copies may differ from itself."""

    def __init__(self, clean: LoadedModel, module: nn.Module, label: str) -> None:
        super().__init__(module, label, blocks=clean.blocks)
        self.clean = clean

    @property
    def has_known_code(self) -> bool:
        """Nothing made from it may be stored."""
        return False

    def layout(self, module: nn.Module, inputs: Any, run: Any) -> Any:
        return self.clean.layout(module, inputs, run)
