"""Arrays in blocks, so that of a large one no second copy need be in memory."""

from __future__ import annotations

from collections.abc import Iterator

from ...dtypes import Array

ENTRIES = 1 << 21
"""In a block."""


def blocks(array: Array) -> Iterator[tuple[int, Array]]:
    """Slices along the first axis of an array that has one, each with where it begins."""
    entries = array.size // len(array) if len(array) else 1
    step = max(1, ENTRIES // max(1, entries))
    for start in range(0, len(array), step):
        yield start, array[start : start + step]
