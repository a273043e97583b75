"""A place in a model, the tensor there, and who made it. Plain numpy, read-only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

from .dtypes import Array, dtype_name
from .jsonable import Later, Sparse
from .names import is_shared


def read_only(array: Array) -> Array:
    """A view of `array` that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class Point:
    """A place in the model: its canonical name, and the module it was taken from."""

    name: str
    module: str = ""
    found: Sparse[str] = field(default="", compare=False)
    """How a backend that has no modules found it: by scope metadata, by value, ..."""

    @property
    def is_shared(self) -> bool:
        """Whether it is no layer's state, but what layers share; a backend need not give it."""
        return is_shared(self.name)


@dataclass(frozen=True, eq=False)
class State:
    """The tensor at one point, in its native dtype."""

    point: Point
    array: Array

    @property
    def dtype(self) -> str:
        return dtype_name(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def elements(self) -> int:
        return math.prod(self.shape)


@runtime_checkable
class Held(Protocol):
    """A tensor left where it was made: a copy that nobody writes to, fetched when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """As `dtype_name` would have it."""

    def fetch(self) -> Array: ...


class HeldState(State):
    """A state that stays on its device until somebody asks for its array."""

    def __init__(self, point: Point, held: Held) -> None:
        object.__setattr__(self, "point", point)
        object.__setattr__(self, "held", held)

    held: Held

    @cached_property
    def array(self) -> Array:
        return read_only(self.held.fetch())

    @property
    def dtype(self) -> str:
        return self.held.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape


@dataclass(frozen=True)
class BackendInfo:
    """Who made a trace: everything that may explain a different number."""

    spec: str
    name: str
    device: str
    dtype: str
    """What it computes in; states may be stored wider."""
    versions: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    dtypes: Later[Mapping[str, str]] = field(default_factory=dict)
    """What each point computes in; empty where all compute in `dtype`, which is the coarsest."""
    stored: Later[Mapping[str, str]] = field(default_factory=dict)
    """Of such a mixture: the dtype of a state that is handed on coarser than it was computed."""
