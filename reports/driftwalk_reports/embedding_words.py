"""What a difference does to embeddings, in words."""

from __future__ import annotations

from driftwalk.measure.constants import FEWEST_NEIGHBOURS
from driftwalk.measure.embeddings import Embedding

from .numbers import cosine, count, cut, number


def embedding_sentence(found: Embedding) -> str:
    """Directions, then neighbours: what is decided with an embedding."""
    rows = f"{count(found.rows)} row{'s' if found.rows != 1 else ''}"
    what = ", averaged over the positions of a row" if found.pooled else ""
    text = f"{cut(found.output, 80)}{what}: cosine to the reference {cosine(found.cosine_min)}"
    text += f" or more in {rows}" if found.rows > 1 else f" in {rows}"
    if not found.compared:
        return f"{text}; with {FEWEST_NEIGHBOURS} rows or more, neighbours could be compared, too."
    if not found.reordered:
        return f"{text}; each has the same neighbours in the same order."
    if not found.moved:
        others = f"the order of those farther off changes for {count(found.reordered)}"
        return f"{text}; each has the same nearest neighbour, {others}."
    one = found.examples[0]
    said = f"row {one.row} has row {one.candidate}, not {one.reference}, which the reference has "
    said += f"nearer by {number(one.gap)}"
    ties = f" ({count(found.ties)} inside the noise: a tie, not a bug)" if found.ties else ""
    text += f"; the nearest neighbour changes for {count(found.moved)}{ties}, the order of all for "
    return f"{text}{count(found.reordered)}; {said}."
