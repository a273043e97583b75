"""How far a run drives each unit of each activation: which were seen where the function is flat or
straight, and how large their inputs were.

A unit is a channel of what an activation is given. A candidate that saturates or overflows is right
for every input that does not drive it so far; only how far the units were driven says how much such
a pass is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from driftwalk.dtypes import Array
from driftwalk.exercised import Driven

from .constants import SEEN_TWICE, SMOOTH_BEND

_KINKED = ("relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu", "rrelu")
_SMOOTH = ("gelu", "silu", "mish", "tanh", "sigmoid", "softplus", "hardswish", "hardsigmoid")
BENDS = {
    **dict.fromkeys(_KINKED, 0.0),
    **dict.fromkeys((*_SMOOTH, "logsigmoid", "hardtanh"), SMOOTH_BEND),
}
"""Activations, and how far from zero an input must be for the bend to be behind it."""
_SECOND = (_ConvNd, _NormBase, nn.GroupNorm)
"""Modules that give channels as the second axis; all others as the last."""


class Units:
    """The units of one activation: what was seen of each."""

    def __init__(self, largest: Array, low: Array, high: Array) -> None:
        self._low, self._high = low, high
        self._largest, self._second = largest, np.zeros_like(largest)
        self._runs = 1

    def again(self, other: Units) -> None:
        """Another call in the same run: what it drove farther counts."""
        self._low |= other._low
        self._high |= other._high
        self._largest = np.maximum(self._largest, other._largest)

    def add(self, other: Units) -> None:
        """Another run: the two largest inputs are kept apart."""
        self._low |= other._low
        self._high |= other._high
        rest = np.minimum(self._largest, other._largest)
        self._second = np.maximum.reduce([self._second, other._second, rest])
        self._largest = np.maximum(self._largest, other._largest)
        self._runs += other._runs

    def said(self, where: str, function: str) -> Driven:
        near = self._second >= SEEN_TWICE * self._largest
        return Driven(
            where=where,
            function=function,
            units=len(self._largest),
            low=int(self._low.sum()),
            high=int(self._high.sum()),
            largest=float(self._largest.max(initial=0.0)),
            twice=int(near.sum()) if self._runs > 1 else None,
        )


Key = tuple[str, str, int]
"""Where an activation is, the function, and its units: with another shape they are others."""


class Saturation:
    """The units of all activations that one run, or several, called."""

    def __init__(self, inputs: Mapping[str, torch.Tensor] | None = None) -> None:
        mask = (inputs or {}).get("attention_mask")
        self._mask = mask if mask is not None and mask.ndim == 2 else None
        self._units: dict[Key, Units] = {}

    def add(self, other: Saturation) -> None:
        """What another run saw."""
        for key, units in other._units.items():
            have = self._units.setdefault(key, units)
            if have is not units:
                have.add(units)

    @property
    def said(self) -> tuple[Driven, ...]:
        return tuple(units.said(*key[:2]) for key, units in self._units.items())

    def note(self, name: str, args: Iterable[Any], path: str, part: nn.Module | None) -> None:
        """A function that is about to be called; `part` gave its input, or is the activation."""
        given = next(iter(args), None)
        if not isinstance(given, torch.Tensor) or given.ndim < 2 or not given.is_floating_point():
            return
        by_unit = self._by_unit(given.detach(), part)
        if not by_unit.numel():
            return
        least, most = (by_unit.amin(0), by_unit.amax(0))
        bend = BENDS[name]
        low, high = (least < -bend).cpu().numpy(), (most > bend).cpu().numpy()
        largest = torch.maximum(most, -least).float().cpu().numpy()
        seen = Units(np.nan_to_num(largest, posinf=0.0), low, high)
        key = path, name, len(largest)
        if key in self._units:
            self._units[key].again(seen)
        else:
            self._units[key] = seen

    def _by_unit(self, given: torch.Tensor, part: nn.Module | None) -> torch.Tensor:
        """A row for each position that counts, a column for each unit."""
        if self._mask is not None and given.shape[:2] == self._mask.shape and given.ndim == 3:
            return given[self._mask.to(given.device) != 0]
        if isinstance(part, _SECOND) and given.ndim > 2:
            given = given.movedim(1, -1)
        return given.reshape(-1, given.shape[-1])
