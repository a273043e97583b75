"""Which tokens a sequence goes on with: the likeliest ones, or those of a beam search."""

from __future__ import annotations

from collections.abc import Callable

import torch

from driftwalk.decoding import Beams

Choose = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
"""Is handed logits, row by row; gives each row's token, and which row it goes on from, if any."""


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, None]:
    """Each row's own choice."""
    return logits.argmax(-1), None


class BeamSearch:
    """The likeliest sequences of each group of rows, as `generate` of transformers searches them.

    No sequence ends: all go on until the last step.
    """

    def __init__(self, beams: int) -> None:
        self._beams = beams
        self._scores: torch.Tensor | None = None
        self._tokens: list[tuple[int, ...]] = []
        self._origins: list[tuple[int, ...]] = []

    def __call__(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        groups, words = logits.shape[0] // self._beams, logits.shape[1]
        gains = torch.log_softmax(logits.float(), -1).reshape(groups, self._beams, words)
        if self._scores is None:  # all beams are alike: the first one chooses for all
            self._scores = torch.full((groups, self._beams), -torch.inf, device=logits.device)
            self._scores[:, 0] = 0
        totals = (self._scores[:, :, None] + gains).reshape(groups, -1)
        self._scores, best = totals.topk(self._beams, -1)
        first_rows = torch.arange(groups, device=logits.device)[:, None] * self._beams
        tokens, origins = (best % words).flatten(), (first_rows + best // words).flatten()
        self._tokens.append(tuple(tokens.tolist()))
        self._origins.append(tuple(origins.tolist()))
        return tokens, origins

    @property
    def made(self) -> Beams:
        return Beams(tuple(self._tokens), tuple(self._origins))
