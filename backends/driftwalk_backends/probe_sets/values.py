"""Edges of numbers: pixels, sound, and whatever else a model takes as floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from driftwalk.dtypes import Array

from ..default_probe import config_sizes

Inputs = dict[str, Array]
_PIXELS, _SOUNDS = ("pixel", "image"), ("input_features", "input_values", "audio")
BRIGHT = 3.0
"""Beyond what processors make of white: 255 comes to 2.2 to 2.7 in their units."""


def value_edges(base: Mapping[str, Array], config: Any) -> Iterator[tuple[str, Inputs]]:
    """The base with one of its inputs at the edges, by what the input is."""
    for name, array in base.items():
        if array.dtype.kind != "f":
            continue
        if any(word in name for word in _PIXELS):
            found = (*_pixels(array), *_sizes(array, config))
        elif any(word in name for word in _SOUNDS):
            found = tuple(_sound(array))
        else:
            found = tuple(_any_floats(array))
        for what, value in found:
            yield f"{name}: {what}", {**base, name: value.astype(array.dtype)}


def _pixels(array: Array) -> Iterator[tuple[str, Array]]:
    yield "all grey", np.zeros_like(array)
    yield "all black", np.full_like(array, -BRIGHT)
    yield "all white", np.full_like(array, BRIGHT)
    sides = np.indices(array.shape[-2:]).sum(axis=0) % 2
    yield "a chessboard", np.broadcast_to(np.where(sides, BRIGHT, -BRIGHT), array.shape).copy()
    yield "one bright pixel", _one(array, BRIGHT)
    yield "faint", array * 1e-3


def _sizes(array: Array, config: Any) -> Iterator[tuple[str, Array]]:
    """Other sizes of the image, in whole patches."""
    if array.ndim != 4:
        return
    patch = config_sizes.number(config, ("patch_size",), config_sizes.VISION) if config else None
    height, width = array.shape[-2:]
    step = patch or 32
    for h, w in ((height + step, width + step), (height, width + step), (height - step, width)):
        if h > 0 and w > 0:
            rows, columns = np.arange(h) % height, np.arange(w) % width
            yield f"{h} by {w} pixels", array[..., rows[:, None], columns]


def _sound(array: Array) -> Iterator[tuple[str, Array]]:
    yield "silence", np.zeros_like(array)
    alternating = np.where(np.arange(array.shape[-1]) // 8 % 2, 1.0, -1.0)
    yield "full scale", np.broadcast_to(alternating, array.shape).copy()
    yield "one click", _one(array, 1.0)
    yield "faint", array * 1e-4


def _any_floats(array: Array) -> Iterator[tuple[str, Array]]:
    yield "zeros", np.zeros_like(array)
    yield "large", array * 100
    yield "faint", array * 1e-3
    yield "one element", _one(array, 1.0)


def _one(array: Array, value: float) -> Array:
    made = np.zeros_like(array)
    made.reshape(len(made), -1)[:, made[0].size // 2] = value
    return made
