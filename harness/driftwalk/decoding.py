"""How a sequence is fed to a model that keeps a cache: all at once, or as deployments do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

CACHES = ("dynamic", "static", "none")
"""What a model keeps of the tokens before: tensors that grow, tensors of a fixed length, nothing
(all tokens so far are fed again in each step)."""


TOKENS = ("decoder_input_ids", "input_ids")
"""Inputs that may hold the sequence, those of a decoder behind an encoder first."""


@dataclass(frozen=True)
class Decoding:
    """The tokens of each step, and what is kept from one to the next."""

    chunks: tuple[int, ...] = ()
    """How many tokens each step is fed, the prompt first; none: all at once."""
    cache: str = "dynamic"

    def steps(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Where each step begins and ends in a sequence of so many tokens."""
        start = 0
        for count in self.chunks or (tokens,):
            yield start, start + count
            start += count
