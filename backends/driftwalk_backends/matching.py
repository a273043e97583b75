"""Matching by value: which of many tensors is the one that was expected. Plain numpy.

A tensor *fits* where its shape is the expected one up to permutation and flattening. Of those that
fit, the closest in relative L2 is the match, if no other tensor comes near it: copies, casts and
reshapes of it are the same tensor, and anything else must be `MATCH_MARGIN` times as far away.

`by_value` is `map=auto`: which state of a port is which point; its names say nothing. Points are
taken in order of execution, and a port's states in the order in which it wrote them: a match never
goes back. What is not clearly the one has no partner, and is `missing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.states import Point, State, Trace

from .constants import (
    MATCH_AXES,
    MATCH_CLOSEST,
    MATCH_LIMIT_OTHERWISE,
    MATCH_LIMITS,
    MATCH_MARGIN,
    MATCH_SAME,
    MATCH_SAMPLE,
)

AUTO = "auto"


@dataclass(frozen=True)
class Arrangement:
    """How a tensor becomes a state: reshape, transpose, reshape."""

    between: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    rank: int
    """0: as it is; 1: axes of length 1; 2: flattened or permuted; 3: both; 4: split further."""

    def of(self, array: Array) -> Array:
        if self.rank == 0:
            return array
        return array.reshape(self.between).transpose(self.axes).reshape(self.shape)

    def back(self, state: Array, shape: Sequence[int]) -> Array:
        """The tensor of a shape that becomes this state."""
        if self.rank == 0:
            return state
        turned = state.reshape([self.between[axis] for axis in self.axes])
        order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
        return turned.transpose(order).reshape(shape)


def arrangements(shape: Sequence[int], wanted: Sequence[int]) -> tuple[Arrangement, ...]:
    """Every way a tensor of one shape may be a state of another, the plainest first."""
    return _arrangements(tuple(shape), tuple(wanted))


@lru_cache(maxsize=4096)
def _arrangements(shape: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[Arrangement, ...]:
    if math.prod(shape) != math.prod(wanted):
        return ()
    straight = tuple(range(len(wanted)))
    if _long(shape) == _long(wanted):
        own = Arrangement(wanted, straight, wanted, 0 if shape == wanted else 1)
        # Axes of equal length may have been exchanged without a trace in the shape.
        twins = len(set(_long(wanted))) < len(_long(wanted))
        return (own, *_permuted(shape, wanted)) if twins else (own,)
    return tuple(_permuted(shape, wanted)) or (Arrangement(wanted, straight, wanted, 4),)


def _permuted(shape: tuple[int, ...], wanted: tuple[int, ...]) -> list[Arrangement]:
    axes = tuple(axis for axis, size in enumerate(wanted) if size > 1)
    if len(axes) > MATCH_AXES:
        return []
    ways = []
    for order in permutations(axes):
        turned = tuple(wanted[axis] for axis in order)
        whole, straight = turned == _long(shape), order == axes
        if (whole and not straight) or (not whole and _merges(turned, _long(shape))):
            back = tuple(int(i) for i in np.argsort(order))
            ways.append(Arrangement(turned, back, wanted, 2 if whole or straight else 3))
    return sorted(ways, key=lambda way: way.rank)


def _long(shape: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def _merges(fine: tuple[int, ...], coarse: tuple[int, ...]) -> bool:
    """Whether the coarse shape is the fine one with neighbouring axes flattened."""
    sizes = list(fine)
    for size in coarse:
        product = 1
        while sizes and product < size:
            product *= sizes.pop(0)
        if product != size:
            return False
    return not sizes


def error(expected: Array, got: Array, keep: Array | None = None) -> float:
    """Relative L2; infinite where NaN and Inf stand in other places, or in most of them."""
    if keep is not None:
        expected, got = expected[keep], got[keep]
    a, b = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not finite.all() or not np.isfinite(b).all():
        if not np.array_equal(finite, np.isfinite(b)) or finite.mean() < 0.5:
            return float("inf")
        a, b = a[finite], b[finite]
    size = float(np.linalg.norm(a))
    away = float(np.linalg.norm(a - b))
    return away / size if size > 0 else (0.0 if away == 0 else float("inf"))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A tensor of the graph on this probe."""

    name: str
    array: Array
    order: int
    root: str
    """The tensor it is a copy, a cast or a reshape of; its own name where of none."""


@dataclass(frozen=True, eq=False)
class Hit:
    """A candidate compared with an expected state."""

    candidate: Candidate
    arrangement: Arrangement
    error: float

    @property
    def array(self) -> Array:
        return self.arrangement.of(self.candidate.array)

    def same_as(self, other: Hit) -> bool:
        """Whether the two are one tensor: by descent, or number by number."""
        if self.candidate.root == other.candidate.root:
            return True
        return error(self.array, other.array) <= MATCH_SAME


class Pool:
    """The tensors among which states are looked for."""

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._by_size: dict[int, list[Candidate]] = {}
        for candidate in candidates:
            self._by_size.setdefault(candidate.array.size, []).append(candidate)

    def hits(
        self,
        expected: Array,
        keep: Array | None = None,
        allowed: Callable[[Candidate], bool] = lambda _: True,
        closest: int = MATCH_CLOSEST,
    ) -> list[Hit]:
        """Those that fit, the closest first; a tensor that is not finite stands last."""
        rough: list[tuple[float, Candidate, Arrangement]] = []
        for candidate in self._by_size.get(expected.size, ()):
            ways = arrangements(candidate.array.shape, expected.shape)
            if not ways or not allowed(candidate):
                continue
            errors = [_rough(expected, way.of(candidate.array), keep) for way in ways]
            best = int(np.argmin(errors))
            rough.append((errors[best], candidate, ways[best]))
        rough.sort(key=lambda item: (item[0], item[1].order))
        hits = [
            Hit(candidate, way, error(expected, way.of(candidate.array), keep))
            for _, candidate, way in rough[:closest]
        ]
        return sorted(hits, key=lambda hit: (hit.error, hit.candidate.order))


def _rough(expected: Array, got: Array, keep: Array | None) -> float:
    """The error on some of the tokens, or of the elements where there are no tokens."""
    if keep is None and expected.size > MATCH_SAMPLE:
        step = expected.size // MATCH_SAMPLE
        # A stride that shares no factor with the axes, so that no channel is seen alone.
        picked = np.arange(0, expected.size, step | 1)
        return error(expected.reshape(-1)[picked], got.reshape(-1)[picked])
    return error(expected, got, keep)


def distinct(hits: Sequence[Hit], most: int | None = None) -> list[Hit]:
    """One hit per tensor: of copies, casts and reshapes the plainest, then the first made."""
    groups: list[list[Hit]] = []
    for hit in hits:
        own = next((group for group in groups if group[0].same_as(hit)), None)
        if own is not None:
            own.append(hit)
        elif most is None or len(groups) < most:
            groups.append([hit])
    return [
        min(group, key=lambda hit: (hit.arrangement.rank, hit.candidate.order)) for group in groups
    ]


def clear(hits: Sequence[Hit], limit: float) -> Hit | None:
    """The best hit, if it is within the limit and no other tensor comes near it."""
    apart = distinct(hits, most=2)
    if not apart or not apart[0].error <= limit:
        return None
    if len(apart) > 1 and apart[1].error < MATCH_MARGIN * max(apart[0].error, MATCH_SAME):
        return None
    return apart[0]


def by_value(expected: Trace, port: Trace) -> Trace:
    """The port's states under the names of the points they are; what is no point is left out."""
    pool = Pool(
        Candidate(state.point.name, state.array, order, state.point.name)
        for order, state in enumerate(port)
    )
    last, matched = 0, []
    for state in expected:
        name, array = state.point.name, state.array
        keep = expected.probe.keep(name, array.shape)
        dtypes = {state.dtype, port.backend.dtype, expected.backend.dtype, *(s.dtype for s in port)}
        limit = max(
            (MATCH_LIMITS[dtype] for dtype in dtypes & MATCH_LIMITS.keys()),
            default=MATCH_LIMIT_OTHERWISE,
        )

        def is_later(candidate: Candidate, last: int = last) -> bool:
            return candidate.order >= last

        if (hit := clear(pool.hits(array, keep, is_later), limit)) is not None:
            last = hit.candidate.order
            matched.append(State(Point(name, hit.candidate.name, "value"), hit.array))
    if not matched:
        raise UsageError(
            "map=auto found none of the points among the states by their values: is it the same "
            "model, and the same probe? A map.toml names them whatever their values are."
        )
    return replace(port, states=tuple(matched))
