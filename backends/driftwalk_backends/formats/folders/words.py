"""Numbers of a few bits, packed into words of 32 bits."""

from __future__ import annotations

import numpy as np

from driftwalk.dtypes import Array

WORD = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns each four bits of a word belong to, the lowest bits first."""


def stream(words: Array, bits: int) -> Array:
    """Numbers along the first axis, the lowest bits first; one may lie in two words (three bits).

    Bits that are left over at the end are no number.
    """
    given = words.view(np.uint32).astype(np.uint64)
    starts = np.arange(len(given) * WORD // bits) * bits
    first, shift = starts // WORD, (starts % WORD).astype(np.uint64)[:, None]
    following = np.minimum(first + 1, len(given) - 1)
    both = given[first] | given[following] << np.uint64(WORD)
    made: Array = (both >> shift & np.uint64((1 << bits) - 1)).astype(np.uint8)
    return made


def awq(words: Array) -> Array:
    """Four bits each, along the second axis, in AWQ's order."""
    given = words.view(np.uint32)
    made = np.empty((*given.shape, len(AWQ_ORDER)), np.uint8)
    for place, column in enumerate(AWQ_ORDER):
        made[..., column] = given >> np.uint32(4 * place) & np.uint32(15)
    return made.reshape(len(given), -1)
