"""A named set of weights, wherever it lies: known by name and shape, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .dtypes import Array

SourceKind = Literal["module", "files", "graph"]


@dataclass(frozen=True, eq=False)
class Stored:
    """One weight: what is known of it before it is read, and how to read it."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array]


@dataclass(frozen=True, eq=False)
class WeightSource:
    """All weights of a model, none of them read yet."""

    label: str
    kind: SourceKind
    tensors: Mapping[str, Stored]
    ties: Mapping[str, str] = field(default_factory=dict)
    """Names that stand for the same memory as another, and that other: the first of its group."""
    notes: tuple[str, ...] = ()

    def group(self, name: str) -> frozenset[str]:
        """All names of the weight that has this name, itself included."""
        first = self.ties.get(name, name)
        return frozenset((first, *(one for one, to in self.ties.items() if to == first)))
