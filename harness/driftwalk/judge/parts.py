"""The parts of a layer whose inputs are rounded while it runs, each given what it was given.

Between two products a number may tip over to the next step by chance, and what comes of it is as
large as the rounding itself. Inside one product, given its input, next to nothing tips over: so the
parts of a layer say what the whole of it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median

from ..adapter import Backend
from ..measure.norms import ratio
from ..names import layer_of
from ..states import Probe
from .drill import Introduced, introduced, looking
from .honest import ROUNDED, K

LIMIT = 0.01
"""How far, relatively, a part may be off what its whole numbers give: a few may tip over. In a
coarser format, where more do, K times what the same part of the yardstick is off."""
MIDDLE = 5e-5
"""The same of its median token, where few tokens have a number that does: only arithmetic is left.
Sums in float32 are off by 1e-6, sums in float16 by 3e-4."""
IN_ROUNDOFFS = 16
"""The same for coarser formats, at most: K times what the yardstick is off, and what rounding a
result leaves."""
TOKENS = 8
"""With fewer, one that tips over may be the median."""


def by_parts(truth: Backend, side: Backend, probe: Probe) -> dict[str, Introduced]:
    """What each part of a side's layers is off, given what the side gave it."""
    with looking(side, "module"), looking(truth, "module"):
        return introduced(truth, side.trace(probe))


def used_by_parts(
    found: Mapping[str, Introduced],
    roundoff: float,
    middle: bool = True,
    yardstick: Mapping[str, Introduced] | None = None,
) -> dict[str, float]:
    """For each layer, how much of what a part may be off its worst one is; 1 is the limit.

    `middle`: whether few tokens of a part have a number that may tip over. `yardstick`: the same
    parts of honest arithmetic at a coarser format.
    """
    own = yardstick or {}
    middles = _MiddleLimits(roundoff, own)
    worst: dict[str, float] = {}
    for name, part in found.items():
        layer = layer_of(name)
        if layer is None:
            continue
        used = _error(part) / max(LIMIT, K * _error(own[name]) if name in own else 0.0)
        if middle and part.tokens >= TOKENS and _is_smallest(name, found):
            used = max(used, _middle_error(part) / middles.of(name))
        worst[layer] = max(worst.get(layer, 0.0), used)
    return worst


def _error(part: Introduced) -> float:
    return ratio(part.error.l2, part.scale.l2)


def _middle_error(part: Introduced) -> float:
    return ratio(part.error.token_middle, part.scale.token_middle)


class _MiddleLimits:
    """How far the median token of a part may be off.

    K times what the middle one of all parts is, or more where this part of any layer is off more:
    where arithmetic in a coarse format lies before the rounding, as attention does, many tokens
    have numbers that tip over, and whether the median is one of them is chance. All of them
    together say by how much.
    """

    def __init__(self, roundoff: float, yardstick: Mapping[str, Introduced]) -> None:
        self._most, self._rounding = IN_ROUNDOFFS * roundoff, ROUNDED * roundoff
        smallest = {
            name: part
            for name, part in yardstick.items()
            if part.tokens >= TOKENS and _is_smallest(name, yardstick)
        }
        self._usual = median(map(_middle_error, smallest.values())) if smallest else math.inf
        self._own: dict[str, float] = {}
        for name, part in smallest.items():
            known = self._own.get(_role(name), 0.0)
            self._own[_role(name)] = max(known, _error(part), _middle_error(part))

    def of(self, name: str) -> float:
        honest = max(self._usual, self._own.get(_role(name), 0.0))
        return max(MIDDLE, min(self._most, K * honest + self._rounding))


def _role(name: str) -> str:
    """What a part is within its layer."""
    return name.removeprefix(layer_of(name) or "")


def _is_smallest(name: str, all_names: Iterable[str]) -> bool:
    """Whether nothing inside it is looked at: no number can tip over between its parts."""
    return "." in name.removeprefix(layer_of(name) or "") and not any(
        other.startswith(f"{name}.") for other in all_names
    )
