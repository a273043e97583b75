"""How a sequence is fed to both sides: the prompt whole or in pieces, beams, drafted tokens.

A step is one token of the sequence, however many are fed in one run; step 0 is the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...decoding import CACHES, Decoding, Rows
from ...dtypes import Array
from ...errors import UsageError
from ...states import Probe
from .prompt import tokens_of


@dataclass(frozen=True)
class Feeding:
    """What was asked for."""

    steps: int
    cache: str = "dynamic"
    beams: int = 1
    """Rows of a beam search for each row of the prompt; 1: the likeliest token, no search."""
    chunk: int = 0
    """Tokens of the prompt that are fed at once; 0: all."""
    draft: int = 0
    """Tokens that an assistant would have drafted for each run; 0: one token a run."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps={self.steps}: at least one token must be generated.")
        if self.cache not in CACHES:
            raise UsageError(f"cache={self.cache!r}: one of {', '.join(CACHES)}.")
        if self.beams < 1 or self.chunk < 0 or self.draft < 0:
            raise UsageError(
                f"beams={self.beams}, chunk={self.chunk}, draft={self.draft}: at least 1 beam, and "
                "no negative numbers of tokens."
            )
        if self.draft and self.beams > 1:
            raise UsageError(
                f"beams={self.beams}, draft={self.draft}: tokens are drafted for one sequence a "
                "row; ask for one of the two."
            )
        if self.draft and self.cache == "static":
            raise UsageError("draft= needs a cache that can be cropped: cache='dynamic'.")

    @property
    def rewinds(self) -> bool:
        """Whether a cache is reordered or cropped between steps."""
        return self.beams > 1 or self.draft > 0

    def plan(self, prompt: int) -> Decoding:
        """The prompt, then one token a run."""
        return Decoding((*pieces(prompt, self.chunk), *(1,) * self.steps), self.cache)

    def drafted(self, prompt: int, ids: Array) -> Decoding:
        """The prompt, then runs of a token and its draft, of which some are wrong.

        All of the draft is right first, then ever less, then all again.
        """
        own = pieces(prompt, self.chunk)
        chunks, wrong = list(own), [0] * len(own)
        total, most = ids.shape[1], self.draft + 1
        while (start := sum(chunks)) < total:
            right = min(most - (len(chunks) - len(own)) % most, total - start)
            chunks.append(right)
            wrong.append(min(most - right, total - start - right))
        ends = np.cumsum(chunks).tolist()
        rejected = [_wrong(ids, end, count) for end, count in zip(ends, wrong, strict=True)]
        return Decoding(tuple(chunks), self.cache, rejected=tuple(rejected))


@dataclass(frozen=True)
class How:
    """All that was asked for, beside the sides and the policy."""

    feeding: Feeding
    blame: bool | str = "auto"
    invariance: bool = False
    stored: bool = True
    witness: str = "auto"
    missing: tuple[str, ...] = ()
    patch: bool = False
    any_steps: bool = False
    """Whether no number of steps was asked for: a recording may have others."""


def pieces(tokens: int, most: int) -> tuple[int, ...]:
    """So many tokens, at most so many at once; 0: all."""
    if not 0 < most < tokens:
        return (tokens,)
    rest = tokens % most
    return (most,) * (tokens // most) + ((rest,) if rest else ())


def _wrong(ids: Array, end: int, count: int) -> Rows:
    """For each row, tokens that stand earlier in it, and not where they are fed."""
    rows: Sequence[Sequence[int]] = ids.tolist()
    return tuple(
        tuple(
            next((one for one in reversed(row[:end]) if one != row[end + at]), row[0])
            for at in range(count)
        )
        for row in rows
    )


def in_beams(prompt: Probe, beams: int) -> Probe:
    """The prompt with each row as often as there are beams."""
    rows = len(prompt.inputs[tokens_of(prompt)])
    inputs = {
        name: np.repeat(array, beams, 0) if array.ndim and len(array) == rows else array
        for name, array in prompt.inputs.items()
    }
    texts = tuple(text for text in prompt.texts for _ in range(beams))
    tokens = tuple(row for row in prompt.tokens for _ in range(beams))
    return replace(prompt, inputs=inputs, texts=texts, tokens=tokens, kept=None)
