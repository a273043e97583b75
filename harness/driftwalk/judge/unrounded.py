"""Casts that a runtime leaves out: a layer in float is given a state before that was rounded.

A CPU without kernels for half precision computes in float32, with a cast before and after each
operation; of two that follow on each other, to half precision and back, ONNX Runtime leaves out
both. The state that it shows is rounded, and the next layer, if that computes in float, takes
numbers that were not. That is nearer to the truth, and yet not what the layer makes of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..dtypes import FORMATS, Array, Float64, Format
from ..measure.norms import difference
from ..mixture import UNROUNDED, Mixture
from ..states import State, Trace
from .replay import measured_pairs

_SEED = 0


def unrounded(truth: object, made: Trace, mixture: Mixture) -> dict[str, Array]:
    """How far layers are off that are given states as they may have been before they were rounded.

    Layers that compute in a finer dtype than the state before is handed on in; none where the side
    keeps its casts.
    """
    if mixture.casts != UNROUNDED:
        return {}
    handed = {name: FORMATS[mixture.handed_on_in(name)] for name in made.names}
    finer = {
        name
        for before, name in pairwise(made.names)
        if FORMATS[mixture.at(name)].roundoff < handed[before].roundoff
    }
    if not finer:
        return {}
    rng = np.random.default_rng(_SEED)
    before = (_unrounded(state, handed[state.point.name], rng) for state in made)

    def off(own: State, given: State) -> Array | None:
        name = own.point.name
        return difference(made[name], given.array) if name in finer else None

    found = measured_pairs(truth, replace(made, states=tuple(before)), off)
    return {name: one for name, one in found.items() if one is not None}


def added(some: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    """Both, as they come together."""
    return {**some, **{name: off + some.get(name, 0.0) for name, off in others.items()}}


def _unrounded(state: State, handed: Format, rng: np.random.Generator) -> State:
    """A state that is rounded to this one: each number moved by up to half of its last digit."""
    array: Float64 = state.array.astype(np.float64)
    exponents = np.frexp(np.maximum(np.abs(array), handed.smallest))[1]
    half = handed.roundoff * np.exp2(exponents - 1.0)
    return State(state.point, array + half * rng.uniform(-1, 1, array.shape))
