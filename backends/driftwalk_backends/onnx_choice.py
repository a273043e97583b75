"""Which of several ways to feed a graph is meant: the one that gives the model's outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from driftwalk.dtypes import Array

from .onnx_inputs import Feed
from .onnx_match import MARGIN, arrangements, error


def floats(array: Array) -> bool:
    return array.dtype.kind == "f"


def ranked(array: Array, wanted: Array) -> int:
    """How far apart two shapes are, in ranks of an arrangement."""
    if not floats(array):
        return 9
    return min((way.rank for way in arrangements(array.shape, wanted.shape)), default=9)


def distance(given: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """How far a graph's outputs are from the model's, by the pair of them that is closest."""
    pairs = [
        error(array, mine.reshape(array.shape))
        for array in expected.values()
        for mine in given.values()
        if ranked(mine, array) <= 1
    ]
    return min(pairs, default=float("inf"))


def guessed(options: Sequence[Feed]) -> bool:
    """Whether the ways to feed differ in more than how positions are counted."""
    first = options[0]
    return any(
        not np.array_equal(feed[name], first[name])
        for feed in options[1:]
        for name in first.keys() - {"position_ids"}
    )


def settles(
    tried: Sequence[Mapping[str, Array]], scores: Sequence[float], order: Sequence[int]
) -> bool:
    """Whether the best way to feed is clearly the best, or the next best gives the same."""
    best, second = order[0], order[1]
    if not math.isfinite(scores[best]):
        return False
    if scores[second] >= MARGIN * max(scores[best], 1e-7) or scores[second] <= 1e-5:
        return True
    return all(np.array_equal(tried[best][name], tried[second][name]) for name in tried[best])
