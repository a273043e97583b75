"""The truth is a witness that is cross-examined: does it compute the model's own function?

How far roundoffs travel in this model on this probe can be measured in float64 itself: every
operation's result is changed by a random half roundoff, and what comes out is compared. A yardstick
that is much farther from the truth than that cannot be explained by the model's conditioning: then
the truth computes something else. And where honest arithmetic leaves no digit of a state, no
allowance means anything.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from types import MappingProxyType

import numpy as np

from ..dtypes import FORMATS, Array, Float64, Format
from ..measure.norms import row_sizes
from ..states import Trace
from ..tolerance import BY_DTYPE
from .constants import (
    COARSE_ROUNDOFFS_CEILING,
    LEAST_DIGITS_LOST,
    MANY_TOKENS,
    ROUNDOFFS_CEILING,
    VOID_SHARE,
    YARDSTICKS,
)
from .honest import for_few

EXAMINED_AT = "fp32"
"""The dtype at which a truth is cross-examined, whatever the dtypes of the two sides are."""
_EXAMINED = FORMATS[EXAMINED_AT]


_NONE: Mapping[str, Array] = MappingProxyType({})


def doubt_of(
    exact: Trace,
    made: Trace,
    noisy: Trace | None,
    dtype: Format,
    tipped: Mapping[str, Array] = _NONE,
    chance: Container[str] = (),
) -> str:
    """Why the truth cannot be trusted, and where it is first seen; empty where it can.

    `tipped` are states of the truth after choices that roundoffs could tip over, and `chance` the
    points at which these leave no digit (ties.py): there nothing is wrong with the truth.
    """
    for state in made:
        name, true = state.point.name, exact.state(state.point.name)
        if true is None or true.array.shape != state.array.shape:
            continue
        keep = exact.probe.keep(name, true.array.shape)
        size, error = row_sizes(true.array, None, keep), row_sizes(state.array, true.array, keep)
        if not size.any() or not np.isfinite(error).all():
            continue
        # A box at the edge, a probability of 1e-60: what the format cannot hold is no digit lost.
        width = true.array.shape[-1] if true.array.ndim else 1
        least = dtype.roundoff * size + dtype.smallest * math.sqrt(width)
        # Finer ones carry the float32 noise of casts inside the model.
        jittered = noisy.state(name) if noisy is not None else None
        if jittered is not None and dtype.roundoff >= _EXAMINED.roundoff:
            travelled = row_sizes(jittered.array, true.array, keep) + least
            many = False
            if name in tipped:
                jumps = row_sizes(tipped[name], true.array, keep)
                many = bool((jumps > YARDSTICKS * travelled).mean() > MANY_TOKENS)
                travelled = np.maximum(travelled, jumps)
            if dtype.name == EXAMINED_AT:
                # Which of many tokens tip over is chance; how many do, and how far, is not.
                sizes = (error, travelled, least)
                off, explained, digit = map(np.sort, sizes) if many else sizes
                far = (off > ROUNDOFFS_CEILING * explained) & (off > LEAST_DIGITS_LOST * digit)
                if far.mean() > MANY_TOKENS:
                    return _broken(name, error, size, travelled, dtype)
            elif _is_swollen(error, size, travelled, dtype):
                return _swollen(name, error, size, travelled, dtype)
        if np.median(error) > VOID_SHARE * np.median(size) and name not in chance:
            return (
                f"honest {dtype.name} arithmetic is {_percent(error, size)} off at {name}, which "
                "leaves no digit to compare: this model is ill-conditioned on this probe at this "
                "dtype. Try other inputs, or a finer dtype"
            )
    return ""


def _broken(name: str, error: Float64, size: Float64, travelled: Float64, dtype: Format) -> str:
    return (
        f"plain {dtype.name} PyTorch is {_percent(error, size)} from driftwalk's float64 run at "
        f"{name}, where roundoffs explain {_percent(travelled, size)}: that run does not compute "
        "this model's own function, and cannot be the truth"
    )


def _is_swollen(error: Float64, size: Float64, travelled: Float64, dtype: Format) -> bool:
    """Whether a coarse yardstick allows more than roundoffs explain, and than the dtype table.

    Where it allows less, it is the stricter judge of the two, coarse as it is.
    """
    middle, ceiling = np.median(error), COARSE_ROUNDOFFS_CEILING * for_few(len(error))
    allows_more = YARDSTICKS * middle > BY_DTYPE[dtype.name].atol * np.median(size)
    return bool(allows_more and middle > ceiling * np.median(travelled))


def _swollen(name: str, error: Float64, size: Float64, travelled: Float64, dtype: Format) -> str:
    return (
        f"{dtype.name} PyTorch is {_percent(error, size)} from driftwalk's float64 run at {name}, "
        f"where roundoffs explain {_percent(travelled, size)}: one of the two does not compute "
        "this model as its name says, and no allowance can be taken from them"
    )


def _percent(part: Float64, whole: Float64) -> str:
    return f"{float(part.sum() / whole.sum()):.2g} of the state"
