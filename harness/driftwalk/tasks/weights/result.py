"""The outcome of comparing the weights of two models, frozen: numbers and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...document import Document
from ...weight_change import WeightChange
from ...weight_source import SourceKind


@dataclass(frozen=True)
class WeightSide:
    """One of the two sets of weights."""

    label: str
    kind: SourceKind
    weights: int
    entries: int


@dataclass(frozen=True)
class WeightCounts:
    """How many weights fared how."""

    compared: int
    differing: int
    absent: int
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class WeightReport(Document):
    """What `weights` returns; `changes` has every weight, those that are the same too."""

    kind: ClassVar[str] = "weights"
    WRITTEN: ClassVar[Mapping[str, str]] = {"summary": "summary"}
    reference: WeightSide
    candidate: WeightSide
    changes: tuple[WeightChange, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared, and nothing differs."""
        return self.exit_code == 0

    @property
    def differing(self) -> tuple[WeightChange, ...]:
        return tuple(one for one in self.changes if not one.ok)

    @property
    def exit_code(self) -> int:
        if self.differing:
            return 1
        return 0 if any(one.compared for one in self.changes) else 3

    @property
    def summary(self) -> WeightCounts:
        return WeightCounts(
            sum(one.compared for one in self.changes),
            len(self.differing),
            sum(one.verdict == "absent" for one in self.changes),
            self.exit_code,
        )
