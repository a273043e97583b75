"""How a sequence is fed to a model that keeps a cache: all at once, or as deployments do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from .jsonable import Sparse

CACHES = ("dynamic", "static", "sliding", "quantized", "none")
"""What a model keeps of the tokens before: tensors that grow; tensors of a fixed length; the same
of a model that must have windows; tensors rounded to few bits; nothing (all tokens so far are fed
again in each step)."""


TOKENS = ("decoder_input_ids", "input_ids")
"""Inputs that may hold the sequence, those of a decoder behind an encoder first."""


@dataclass(frozen=True)
class Beams:
    """A beam search that was made, step by step after the first."""

    tokens: tuple[tuple[int, ...], ...]
    """What every row was fed."""
    origins: tuple[tuple[int, ...], ...]
    """The row of the step before that every row goes on from: so the cache is reordered."""

    @property
    def reorders(self) -> bool:
        """Whether any row ever goes on from another than itself."""
        return any(tuple(range(len(step))) != step for step in self.origins)

    def lineage(self) -> list[list[int]]:
        """By step, the first included: where each row of the last step was then."""
        rows = list(range(len(self.origins[-1]))) if self.origins else []
        lines = [rows]
        for origins in reversed(self.origins):
            rows = [origins[row] for row in rows]
            lines.insert(0, rows)
        return lines

    def fed(self) -> list[list[list[int]]]:
        """By step, row by row: all tokens that the row was fed up to it, the prompt's left out."""
        lines: list[list[list[int]]] = [[[] for _ in range(len(self.origins[0]))]]
        for tokens, origins in zip(self.tokens, self.origins, strict=True):
            before = lines[-1]
            lines.append([[*before[at], one] for one, at in zip(tokens, origins, strict=True)])
        return lines


Rows = tuple[tuple[int, ...], ...]
"""Tokens, row by row."""


@dataclass(frozen=True)
class Decoding:
    """The tokens of each step, and what is kept from one to the next."""

    chunks: tuple[int, ...] = ()
    """How many tokens each step is fed, the prompt first; none: all at once."""
    cache: str = "dynamic"
    beams: Sparse[Beams | None] = None
    """Where rows change places between steps, and what each is fed then."""
    rejected: Sparse[tuple[Rows, ...]] = ()
    """By step: tokens that are fed behind its own, and taken back from the cache after it, as
    assisted decoding does with a draft that was wrong."""

    def steps(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Where each step begins and ends in a sequence of so many tokens."""
        start = 0
        for count in self.chunks or (tokens,):
            yield start, start + count
            start += count

    @property
    def words(self) -> str:
        """The tokens of each step, for people: `8, then 24 x 1`."""
        runs = [(size, len(list(same))) for size, same in groupby(self.chunks)]
        return ", then ".join(f"{many} x {size}" if many > 1 else f"{size}" for size, many in runs)
