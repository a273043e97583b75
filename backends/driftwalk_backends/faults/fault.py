"""What a fault is, and what its places are looked for in: the words that all kinds share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from torch import nn

from ..anatomy import Anatomy, Handed
from ..loaded import LoadedModel

T = TypeVar("T")
Setting = float | int | str
BITS = {"fp32": (23, 8), "fp16": (10, 5), "bf16": (7, 8)}
"""Mantissa and exponent bits of the formats a weight is flipped in."""
SMALL_SCALE = 1e-4
"""A weight that is scaled by less than this is a small change of a number, not a bug in code."""


class NoPlace(Exception):  # noqa: N818 - a fact about a point, no error
    """There is no place for a fault of this kind at this point."""


def choose(rng: Random, places: Iterable[T]) -> T:
    """One of the places that were found."""
    listed = list(places)
    if not listed:
        raise NoPlace
    return rng.choice(listed)


@dataclass(frozen=True)
class Fault:
    """One bug: what is changed, and the points that use it, in order of execution."""

    kind: str
    points: tuple[str, ...]
    target: str
    description: str
    settings: Mapping[str, Setting] = field(default_factory=dict)

    @property
    def structural(self) -> bool:
        """A bug in the code or the mapping of weights, not a small change of a number."""
        scale = self.settings.get("scale", 1.0)
        return self.kind != "bit_flip" and isinstance(scale, float) and scale >= SMALL_SCALE

    @property
    def in_weights(self) -> bool:
        """Whether only numbers in parameters differ: the same graph computes with them."""
        in_code = self.kind in ("wrong_epsilon", "wrong_activation") or "argument" in self.settings
        return not in_code


@dataclass(frozen=True, eq=False)
class Subject:
    """What a finder looks at: the clean module, its anatomy, the format its weights will be in."""

    module: nn.Module
    anatomy: Anatomy
    dtype: str

    @classmethod
    def of(cls, model: LoadedModel, anatomy: Anatomy, dtype: str) -> Subject:
        return cls(model.module, anatomy, dtype if dtype in BITS else "fp32")

    def parameters(self, point: str) -> dict[str, nn.Parameter]:
        named, used = dict(self.module.named_parameters()), self.anatomy.parameters
        return {name: p for name, p in named.items() if point in used.get(name, ())}

    def modules(self, point: str) -> dict[str, nn.Module]:
        used = self.anatomy.modules
        return {n: m for n, m in self.module.named_modules() if n and point in used.get(n, ())}

    def handed(self, point: str) -> Handed:
        return self.anatomy.handed.get(point, Handed())

    def block(self, point: str) -> tuple[str, tuple[str, ...]]:
        """The block that works at a point, and all its points."""
        blocks = self.anatomy.blocks
        if point not in blocks:
            raise NoPlace
        return blocks[point], tuple(p for p, path in blocks.items() if path == blocks[point])

    def in_parameter(self, kind: str, name: str, change: str, **settings: Setting) -> Fault:
        points = self.anatomy.parameters[name]
        return Fault(kind, points, name, f"{name}{change}", settings)

    def in_matrix(self, kind: str, path: str, change: str, **settings: Setting) -> Fault:
        """In the weight of a linear layer; a tied one is known by the name it is found under."""
        wanted = self.module.get_parameter(f"{path}.weight")
        name = next(n for n, p in self.module.named_parameters() if p is wanted)
        points = self.anatomy.parameters[name]
        return Fault(kind, points, f"{path}.weight", f"{path}{change}", settings)
