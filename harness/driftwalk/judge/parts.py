"""The parts of a layer whose inputs are rounded while it runs, each given what it was given.

Between two products a number may tip over to the next step by chance, and what comes of it is as
large as the rounding itself. Inside one product, given its input, next to nothing tips over: so the
parts of a layer say what the whole of it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from ..adapter import Backend, BreaksTies, Replays, Sink
from ..dtypes import Array
from ..measure.norms import ratio
from ..names import layer_of
from ..states import Probe, State
from .constants import (
    PART_LIMIT,
    PART_MIDDLE,
    PART_MIDDLE_ROUNDOFFS,
    PART_TIPPED,
    PART_TOKENS,
    ROUNDED_RMS,
    YARDSTICKS,
)
from .drill import Introduced, introduced, looking


def by_parts(
    truth: Backend, side: Backend, probe: Probe, both_ways: bool = False
) -> dict[str, Introduced]:
    """What each part of a side's layers is off, given what the side gave it.

    `both_ways`: numbers lie half-way between two, and may be rounded to either.
    """
    with looking(side, "module"), looking(truth, "module"):
        return introduced(EitherWay(truth) if both_ways else truth, side.trace(probe))


class EitherWay:
    """A truth whose replay gives each token as it is with ties rounded one way or the other,
    whichever is nearer to what was given there."""

    def __init__(self, truth: object) -> None:
        self._truth = truth

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        truth = self._truth
        if not isinstance(truth, Replays) or not isinstance(truth, BreaksTies):
            raise TypeError(f"{truth!r} does not break ties")
        other: dict[str, Array] = {}
        with truth.half_way_otherwise():
            truth.replay(probe, given, lambda made: other.update({made.point.name: made.array}))

        def nearer(made: State) -> None:
            name = made.point.name
            own, one, another = given.get(name), made.array, other.get(name)
            if own is not None and another is not None and own.shape == one.shape:
                made = replace(made, array=_nearer(own, one, another))
            sink(made)

        truth.replay(probe, given, nearer)


def _nearer(own: Array, one: Array, another: Array) -> Array:
    """Of two arrays each token that is nearer to a third one's."""
    if one.dtype.kind != "f" or not one.ndim:
        return one
    with np.errstate(all="ignore"):
        off = (np.square(own - made).sum(-1, keepdims=True) for made in (one, another))
        nearest: Array = np.where(next(off) <= next(off), one, another)
    return nearest


def used_by_parts(
    found: Mapping[str, Introduced],
    roundoff: float,
    middle: bool = True,
    yardstick: Mapping[str, Introduced] | None = None,
    products: Collection[str] = (),
) -> dict[str, float]:
    """For each layer, how much of what a part may be off its worst one is; 1 is the limit.

    `products`: the modules whose inputs may be rounded. A head is judged, too, where it is the only
    one outside of all layers.

    `middle`: whether few tokens of a part have a number that may tip over. `yardstick`: the same
    parts of honest arithmetic, where more may: at a coarser format, or where it is not few. What a
    part of it is off in one layer, the same part of any may be: which one tips over is chance.
    """
    own = yardstick or {}
    head = _head(found, products)
    middles = _MiddleLimits(roundoff, own, head)
    noisiest: dict[str, float] = {}
    for name, part in own.items():
        noisiest[_role(name)] = max(noisiest.get(_role(name), 0.0), _error(part))
    times = YARDSTICKS if middle else PART_TIPPED
    worst: dict[str, float] = {}
    for name, part in found.items():
        layer = name if name == head else layer_of(name)
        if layer is None:
            continue
        used = _error(part) / max(PART_LIMIT, times * noisiest.get(_role(name), 0.0))
        if middle and part.tokens >= PART_TOKENS and (name == head or _is_smallest(name, found)):
            used = max(used, _middle_error(part) / middles.of(name))
        worst[layer] = max(worst.get(layer, 0.0), used)
    return worst


def _head(found: Mapping[str, Introduced], products: Collection[str]) -> str | None:
    """The point whose module is the only product outside of all layers."""
    layers = [part.point.module for name, part in found.items() if layer_of(name) == name]
    outside = [path for path in products if not any(path.startswith(f"{at}.") for at in layers)]
    names = [name for name, part in found.items() if [part.point.module] == outside]
    return names[0] if len(names) == 1 and layer_of(names[0]) is None else None


def _error(part: Introduced) -> float:
    return ratio(part.error.l2, part.scale.l2)


def _middle_error(part: Introduced) -> float:
    return ratio(part.error.token_middle, part.scale.token_middle)


class _MiddleLimits:
    """How far the median token of a part may be off.

    YARDSTICKS times what the middle one of all parts is, or more where this part of any layer is
    off more: where arithmetic in a coarse format lies before the rounding, as attention does, many
    tokens have numbers that tip over, and whether the median is one of them is chance. All of them
    together say by how much.
    """

    def __init__(
        self, roundoff: float, yardstick: Mapping[str, Introduced], head: str | None
    ) -> None:
        self._most, self._rounding = PART_MIDDLE_ROUNDOFFS * roundoff, ROUNDED_RMS * roundoff
        smallest = {
            name: part
            for name, part in yardstick.items()
            if part.tokens >= PART_TOKENS and (name == head or _is_smallest(name, yardstick))
        }
        self._usual = median(map(_middle_error, smallest.values())) if smallest else math.inf
        self._own: dict[str, float] = {}
        for name, part in smallest.items():
            known = self._own.get(_role(name), 0.0)
            self._own[_role(name)] = max(known, _error(part), _middle_error(part))

    def of(self, name: str) -> float:
        honest = max(self._usual, self._own.get(_role(name), 0.0))
        return max(PART_MIDDLE, min(self._most, YARDSTICKS * honest + self._rounding))


def _role(name: str) -> str:
    """What a part is within its layer."""
    return name.removeprefix(layer_of(name) or "")


def _is_smallest(name: str, all_names: Iterable[str]) -> bool:
    """Whether nothing inside it is looked at: no number can tip over between its parts."""
    return "." in name.removeprefix(layer_of(name) or "") and not any(
        other.startswith(f"{name}.") for other in all_names
    )
