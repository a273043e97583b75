"""What honest arithmetic does at many points, as three arrays: quick to write down and to read.

numbers   a row for each point: noise, size (all norms), roundoff, apart, alone
lengths   its tokens and channels, and whether it has `alive`
weights   of all tokens and channels, one after the other; `alive` as 0 and 1 behind them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

import numpy as np

from ..dtypes import Array, Float64
from ..measure.norms import Norms, Weights
from .honest import Honest

_NORMS = len(fields(Norms))
_MORE = ("roundoff", "apart", "alone")


def as_arrays(known: Iterable[Honest]) -> dict[str, Array]:
    """The arrays, by their names."""
    rows, lengths, weights = [], [], []
    for one in known:
        alive = one.weights.alive
        more = [getattr(one, name) for name in _MORE]
        rows.append([*one.noise.in_order, *one.size.in_order, *more])
        lengths.append([one.rows, one.width, alive is not None])
        weights += [one.weights.tokens, one.weights.channels]
        weights += [] if alive is None else [alive.astype(np.float64)]
    return {
        "numbers": np.array(rows, np.float64).reshape(-1, 2 * _NORMS + len(_MORE)),
        "lengths": np.array(lengths, np.int64).reshape(-1, 3),
        "weights": np.concatenate([np.zeros(0), *weights]),
    }


def from_arrays(arrays: Mapping[str, Array]) -> list[Honest]:
    """The same points, in their order; ValueError where lengths do not fit."""
    weights: Float64 = arrays["weights"]
    lengths = arrays["lengths"].tolist()
    if sum(tokens + width + tokens * has for tokens, width, has in lengths) != len(weights):
        raise ValueError("weights of another number of tokens and channels")
    found, at, count = [], 0, _NORMS
    for row, (tokens, width, has_alive) in zip(arrays["numbers"].tolist(), lengths, strict=True):
        ends = at + tokens, at + tokens + width
        alive = weights[ends[1] : ends[1] + tokens] != 0 if has_alive else None
        given = Weights(weights[at : ends[0]], weights[slice(*ends)], alive)
        noise, size, more = row[:count], row[count : 2 * count], row[2 * count :]
        found.append(Honest(Norms(*noise), Norms(*size), given, *more))
        at = ends[1] + (tokens if has_alive else 0)
    return found
