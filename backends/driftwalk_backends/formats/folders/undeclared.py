"""Layers of a folder that are stored in float though config.json says that they are packed.

Whoever loads the folder looks for packed tensors there, and finds none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence

from torch import nn

from driftwalk.formats import Misstored

_ANY = ".*"


def left_in_float(
    module: nn.Module, packed: Collection[str], spared: Sequence[str]
) -> dict[str, Misstored]:
    """By module: those whose like in other blocks is packed, and that nothing is said of."""
    kinds = {_kind(path) for path in packed}
    sentence = (
        "{} is stored in float, and its like in other blocks is not: config.json spares it not"
    )
    return {
        path: Misstored(sentence.format(path), math.inf)
        for path in _matrices(module)
        if path not in packed and _kind(path) in kinds and not _is_spared(path, spared)
    }


def _matrices(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim >= 2:
            yield path


def _kind(path: str) -> str:
    """The path, whatever the number of the block."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "#", path)


def _is_spared(path: str, spared: Sequence[str]) -> bool:
    """Whether a name or a pattern speaks of it; a pattern that is not plain may speak of any."""
    return any(_speaks_of(path, one) for one in spared)


def _speaks_of(path: str, pattern: str) -> bool:
    plain = pattern.removeprefix("-:").removeprefix("+:").removeprefix("^").removesuffix("$")
    pieces = plain.replace("\\.", ".").split(_ANY)
    if any(set(piece) & set("()[]{}|?*+^$\\") for piece in pieces):
        return True
    place = 0
    for piece in pieces:
        found = path.find(piece, place)
        if found < 0:
            return False
        place = found + len(piece)
    return True
