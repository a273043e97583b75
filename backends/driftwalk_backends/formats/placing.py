"""Which module of a model a stored weight was rounded from, where the artefact does not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from driftwalk.dtypes import Array

from .constants import PLACED_COSINE
from .rounded import RoundedWeight


@dataclass(frozen=True)
class Unplaced:
    """A stored weight, and whether it is a table that rows are taken from."""

    weight: RoundedWeight
    is_table: bool = False


def placed(
    module: nn.Module, found: Sequence[Unplaced], partly: bool = False
) -> list[RoundedWeight] | None:
    """The weights with the paths of their modules; None where one was rounded from none of them.

    `partly`: such ones are left out.
    A parameter that several modules share (an embedding and the head above it) is rounded for each
    use in its own way; one that an artefact uses many times is rounded once.
    """
    places = _Places(module)
    made: list[RoundedWeight] = []
    for one in found:
        at = places.of(one)
        if at is None and not partly:
            return None
        made += at or []
    return made


class _Places:
    def __init__(self, module: nn.Module) -> None:
        self._parts = {
            path: (part, weight)
            for path, part in module.named_modules()
            if isinstance(weight := getattr(part, "weight", None), nn.Parameter)
            and weight.ndim >= 2
        }
        self._done: set[str] = set()

    def of(self, one: Unplaced) -> list[RoundedWeight] | None:
        fits = list(self._fits(one))
        if not fits or (best := max(fits, key=lambda fit: fit[:3]))[0] < PLACED_COSINE:
            return None
        *_, path, turned = best
        weight = one.weight.turned() if turned else one.weight
        part, own = self._parts[path]
        sharing = [
            other
            for other, (twin, theirs) in self._parts.items()
            if theirs is own and isinstance(twin, type(part)) and other not in self._done
        ]
        self._done.update(sharing)
        return [replace(weight, path=other) for other in sharing]

    def _fits(self, one: Unplaced) -> Iterator[tuple[float, bool, int, str, bool]]:
        values: Array | None = None
        for number, (path, (part, weight)) in enumerate(self._parts.items()):
            if isinstance(part, nn.Embedding) != one.is_table:
                continue
            own = weight.detach().numpy()
            # A linear layer's weight has a row for each output; a product's matrix a column.
            for turned in (False,) if one.is_table or own.ndim > 2 else (False, True):
                mine = own.T if turned else own
                if mine.shape == one.weight.numbers.shape:
                    values = one.weight.values.astype(np.float32) if values is None else values
                    fresh = path not in self._done  # of two alike, the one not found yet
                    yield _cosine(mine, values), fresh, -number, path, turned


def _cosine(a: Array, b: Array) -> float:
    x, y = a.ravel(), b.ravel()
    size = float(np.linalg.norm(x)) * float(np.linalg.norm(y))
    return float(x @ y) / max(size, 1e-30)
