"""From a state per token to one vector per sentence; padding has no part in it."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from ...dtypes import Array
from ...errors import UsageError

Pooling = Literal["last", "cls", "mean", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def check_pooling(name: str) -> None:
    if name not in POOLINGS:
        raise UsageError(f"Unknown pooling {name!r}. Known: {', '.join(POOLINGS)}.")


def pool(state: Array, keep: Array, how: str) -> Array:
    """[row, token, value] to [row, value] in float64; `keep` tells real tokens from padding.

    `last` and `cls` are the last and the first real token, whichever side is padded.
    """
    check_pooling(how)
    values = state.astype(np.float64)
    rows = np.arange(len(values))
    if how == "cls":
        return np.asarray(values[rows, keep.argmax(axis=1)])
    if how == "last":
        return np.asarray(values[rows, keep.shape[1] - 1 - keep[:, ::-1].argmax(axis=1)])
    inside = keep[:, :, None]
    if how == "max":
        return np.asarray(np.where(inside, values, -np.inf).max(axis=1))
    # Where padding holds NaN or Inf, zero times it would not be zero.
    return np.asarray(np.where(inside, values, 0.0).sum(axis=1) / keep.sum(axis=1)[:, None])
