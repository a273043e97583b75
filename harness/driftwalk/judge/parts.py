"""The parts of a layer whose inputs are rounded while it runs, each given what it was given.

Between two products a number may tip over to the next step by chance, and what comes of it is as
large as the rounding itself. Inside one product, given its input, next to nothing tips over: so the
parts of a layer say what the whole of it cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..measure.norms import ratio
from ..names import layer_of
from .drill import Introduced

LIMIT = 0.01
"""How far, relatively, a part may be off what its whole numbers give: a few may tip over."""
MIDDLE = 5e-5
"""The same of its median token, where few tokens have a number that does: only arithmetic is left.
Sums in float32 are off by 1e-6, sums in float16 by 3e-4."""
IN_ROUNDOFFS = 16
"""The same for coarser formats."""
TOKENS = 8
"""With fewer, one that tips over may be the median."""


def used_by_parts(
    found: Mapping[str, Introduced], roundoff: float, middle: bool = True
) -> dict[str, float]:
    """For each layer, how much of what a part may be off its worst one is; 1 is the limit.

    `middle`: whether few tokens of a part have a number that may tip over.
    """
    limit = max(MIDDLE, IN_ROUNDOFFS * roundoff)
    worst: dict[str, float] = {}
    for name, part in found.items():
        layer = layer_of(name)
        if layer is None:
            continue
        used = ratio(part.error.l2, part.scale.l2) / LIMIT
        if middle and part.tokens >= TOKENS and _is_smallest(name, found):
            off = ratio(part.error.token_middle, part.scale.token_middle)
            used = max(used, off / limit)
        worst[layer] = max(worst.get(layer, 0.0), used)
    return worst


def _is_smallest(name: str, all_names: Iterable[str]) -> bool:
    """Whether nothing inside it is looked at: no number can tip over between its parts."""
    return "." in name.removeprefix(layer_of(name) or "") and not any(
        other.startswith(f"{name}.") for other in all_names
    )
