"""The model's own outputs among a graph's: which is which, and so how the graph is to be fed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from driftwalk.dtypes import Array

from ..matching import MARGIN, arrangements, error
from .feeds import Feed

_FAR = 9
"""A rank that no arrangement has."""


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def partners(
    expected: Mapping[str, Array], arrays: Mapping[str, Array], name_of: Callable[[str], str]
) -> dict[str, str]:
    """For each output of the model the graph's: by name, else the only one that has the shape."""
    found: dict[str, str] = {}
    for name, array in expected.items():
        named = [key for key in arrays if name_of(key) == name]
        shaped = [key for key in arrays if _rank(arrays[key], array) <= 1]
        close = [key for key in shaped if error(array, arrays[key].reshape(array.shape)) < 0.5]
        for keys in (named, close):
            if name not in found and len(keys) == 1 and keys[0] in shaped:
                found[name] = keys[0]
    return found


def choose(
    options: Sequence[Feed], tried: Sequence[Mapping[str, Array]], expected: Mapping[str, Array]
) -> int | None:
    """Of several ways to feed a graph the one that gives the model's outputs; None: nobody knows.

    Where only positions are counted in several ways, the first may be a little worse than another.
    """
    scores = [_distance(given, expected) for given in tried]
    order = sorted(range(len(options)), key=lambda i: scores[i])
    if not _guessed(options):
        return 0 if scores[0] <= MARGIN * max(scores[order[0]], 1e-6) else order[0]
    return order[0] if _settles(tried, scores, order) else None


def _rank(array: Array, wanted: Array) -> int:
    """How far apart two shapes are, in ranks of an arrangement."""
    if is_float(array) != is_float(wanted):
        return _FAR
    return min((way.rank for way in arrangements(array.shape, wanted.shape)), default=_FAR)


def _distance(given: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """How far a graph's outputs are from the model's, by the pair of them that is closest."""
    pairs = [
        error(array, mine.reshape(array.shape))
        for array in expected.values()
        for mine in given.values()
        if is_float(array) and _rank(mine, array) <= 1
    ]
    return min(pairs, default=float("inf"))


def _guessed(options: Sequence[Feed]) -> bool:
    """Whether the ways to feed differ in more than how positions are counted."""
    first = options[0]
    return any(
        not np.array_equal(feed[name], first[name])
        for feed in options[1:]
        for name in first.keys() - {"position_ids"}
    )


def _settles(
    tried: Sequence[Mapping[str, Array]], scores: Sequence[float], order: Sequence[int]
) -> bool:
    """Whether the best way to feed is clearly the best, or the next best gives the same."""
    best, second = order[0], order[1]
    if not math.isfinite(scores[best]):
        return False
    if scores[second] >= MARGIN * max(scores[best], 1e-7) or scores[second] <= 1e-5:
        return True
    return all(np.array_equal(tried[best][name], tried[second][name]) for name in tried[best])
