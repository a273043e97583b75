"""Two attentions of one model: what one gives beside its result, and another never has."""

from __future__ import annotations

import re

import numpy as np

from ..adapter import BackendInfo
from ..states import State
from .constants import MOST_ATTENTION_SUM

_BESIDE = re.compile(r".*\.out[1-9]\d*|output\..*attentions")
"""Names of what a block or a model gives beside its main result."""


def same_attention(one: BackendInfo, other: BackendInfo) -> bool:
    """Whether both sides have one attention, as far as they say."""
    flags = [backend.flags["attn"] for backend in (one, other) if "attn" in backend.flags]
    return len(set(flags)) < 2


def is_attention_weights(state: State) -> bool:
    """By its name and by its numbers: a second stream of a model has some below zero."""
    if state.array.ndim < 2 or _BESIDE.fullmatch(state.point.name) is None:
        return False
    weights = state.array.astype(np.float64, copy=False)
    return bool((weights >= 0).all() and (weights.sum(-1) <= MOST_ATTENTION_SUM).all())
