"""The steps of a block type: how far apart the numbers are that a block of it can hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from driftwalk.dtypes import Array

from .header import Tensor

_HALF = 2
_FIRST = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
"""Types whose block begins with its step, in half precision."""
_K_SCALES = ("Q4_K", "Q5_K")


def steps_of(tensor: Tensor, path: Path, values: Array) -> tuple[Array, int]:
    """The step of each block, and how many numbers a block has.

    Of types without one step, the largest gap there can be is told from the block's own values.
    """
    with path.open("rb") as file:
        raw = np.fromfile(file, np.uint8, tensor.bytes, offset=tensor.start)
    *rows, width = tensor.shape
    blocks = raw.reshape(*rows, width // tensor.type.numbers, tensor.type.bytes)
    kind = tensor.type.name
    if kind in _FIRST:
        return np.abs(_halves(blocks[..., :2])), 32
    if kind in _K_SCALES:
        packed = blocks[..., 4:16]
        low, high = packed[..., 0:4] & 63, (packed[..., 8:12] & 15) | ((packed[..., 0:4] >> 6) << 4)
        scales = np.concatenate([low, high], -1).astype(np.float64)
        steps = _halves(blocks[..., :2])[..., None] * scales
        return np.abs(steps.reshape(*rows, -1)), 32
    if kind == "Q6_K":
        scales = blocks[..., 192:208].view(np.int8).astype(np.float64)
        steps = _halves(blocks[..., 208:210])[..., None] * scales
        return np.abs(steps.reshape(*rows, -1)), 16
    apart = np.abs(values).reshape(*rows, -1, tensor.type.numbers).max(-1)
    return apart, tensor.type.numbers


def _halves(raw: Array) -> Array:
    made: Array = np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float64)
    return made
