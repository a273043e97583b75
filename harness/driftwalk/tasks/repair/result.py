"""What `repair` found, frozen: numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from ...document import Document
from ...jsonable import Size
from ...result import RunVerdict
from ...states import BackendInfo

GoalKind = Literal["kl", "snr"]


@dataclass(frozen=True)
class Goal:
    """What the format may cost: the mean KL divergence at most, or the SNR (decibels) at least."""

    kind: GoalKind
    limit: Size

    def __str__(self) -> str:
        sizes = {
            "kl": f"KL divergence at most {self.limit:.3g}",
            "snr": f"SNR at least {self.limit:.3g} dB",
        }
        return sizes[self.kind]


@dataclass(frozen=True)
class Part:
    """What is restored at once: a block, or one module."""

    name: str
    modules: tuple[str, ...]
    bytes: int
    """What it takes more in float32 than as it is stored."""
    alone: Size
    """The measure with this part alone in float."""
    rank: int
    """By that, counted from 1."""


@dataclass(frozen=True)
class Stage:
    """One more part in float: a point of the curve of size against cost."""

    part: str
    measure: Size
    bytes: int
    """What all parts so far take more."""


@dataclass(frozen=True, kw_only=True)
class Repair(Document):
    """What `repair` returns."""

    kind: ClassVar[str] = "repair"
    candidate: BackendInfo
    goal: Goal
    before: Size
    """The measure of the goal (KL divergence, or SNR in decibels) as the candidate is."""
    after: Size
    """The same with the chosen parts in float."""
    bytes: int
    """What the rounded weights take now."""
    parts: tuple[Part, ...]
    steps: tuple[Stage, ...]
    chosen: tuple[str, ...]
    """The parts to leave in float; none where the goal holds as it is, or cannot be reached."""
    reached: bool
    runs: int
    """Of the model, each with other parts in float."""
    lists: Mapping[str, str]
    """The modules to leave out, in the words of tools: by the name of the tool."""
    remade: str = ""
    """The candidate made anew without them, where that could be done."""
    verdict: RunVerdict | None = None
    """Of the new candidate, with the goal as its limit."""

    @property
    def modules(self) -> tuple[str, ...]:
        """All modules to leave in float."""
        kept = {part.name: part.modules for part in self.parts}
        return tuple(path for name in self.chosen for path in kept.get(name, ()))

    @property
    def more(self) -> int:
        """Bytes that the chosen parts take more."""
        sizes = {part.name: part.bytes for part in self.parts}
        return sum(sizes.get(name, 0) for name in self.chosen)

    @property
    def ok(self) -> bool:
        return self.reached and self.verdict in (None, "pass")

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1
