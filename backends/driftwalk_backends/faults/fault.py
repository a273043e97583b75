"""What a fault is, and what its places are looked for in: the words that all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from ..anatomy import Anatomy

Setting = float | int | str
SMALL_SCALE = 1e-4
"""A weight that is scaled by less than this is a small change of a number, not a bug in code."""


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

    def parameters(self, point: str) -> dict[str, nn.Parameter]:
        named = dict(self.module.named_parameters())
        used = self.anatomy.parameters
        return {name: p for name, p in named.items() if point in used.get(name, ())}

    def modules(self, point: str) -> dict[str, nn.Module]:
        used = self.anatomy.modules
        return {n: m for n, m in self.module.named_modules() if n and point in used.get(n, ())}

    def owners(self, path: str) -> tuple[str, ...]:
        return self.anatomy.parameters[_first_name(self.module, f"{path}.weight")]


def _first_name(module: nn.Module, name: str) -> str:
    """The name under which a tied parameter is known."""
    wanted = module.get_parameter(name)
    return next(n for n, p in module.named_parameters() if p is wanted)
