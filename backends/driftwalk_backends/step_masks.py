"""The masks of all steps as the one of a run on the whole sequence: queries by keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftwalk.states import Point

from .constants import SEES_ITSELF
from .layout import Stack


class JoinedMasks:
    """What the layers of these stacks share as masks, (row, head, query, key), step by step."""

    def __init__(
        self, stacks: Sequence[Stack], bounds: Sequence[tuple[int, int]], extras: Sequence[int]
    ) -> None:
        self._bounds, self._extras = bounds, extras
        self._names = {
            shared.point(stack.prefix, "").name
            for stack in stacks
            for shared in stack.shared
            if shared.mask and shared.name.startswith("mask") and len(bounds) > 1
        }
        self._seen: dict[str, dict[int, torch.Tensor]] = {}

    def has(self, point: Point, tensor: torch.Tensor) -> bool:
        """Whether a state is such a mask."""
        return point.name in self._names and tensor.ndim == 4

    def add(self, point: Point, step: int, mask: torch.Tensor) -> None:
        self._seen.setdefault(point.name, {})[step] = mask.detach().clone()

    def joined(self, point: Point) -> torch.Tensor:
        """The queries of all steps, and a column for each token of the sequence.

        A step without a mask sees all tokens up to each of its own.
        """
        seen = self._seen[point.name]
        like = next(iter(seen.values()))
        steps = range(len(self._bounds))
        return torch.cat([self._part(step, seen.get(step), like) for step in steps], -2)

    def _part(self, step: int, mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        (start, end), tokens = self._bounds[step], self._bounds[-1][1]
        extra, rows, heads = self._extras[step], *like.shape[:2]
        causal = torch.ones(end - start, tokens, dtype=like.dtype, device=like.device).tril(start)
        if mask is None:
            return causal.expand(rows, heads, -1, -1)
        queries, keys = mask.shape[-2:]
        # Tokens before the step's own were fed again, those behind are taken back.
        own = mask[:, :, queries - extra - (end - start) : queries - extra]
        first = max(0, end + extra - keys)  # a window has the last ones
        width = min(keys, tokens - first)
        whole = torch.zeros(rows, heads, end - start, tokens, dtype=like.dtype, device=like.device)
        whole[..., first : first + width] = own[..., :width]
        # A token sees itself: else the mask was meant the other way round.
        itself = whole[..., start:end].diagonal(dim1=-2, dim2=-1)
        if itself.float().mean() < SEES_ITSELF:
            whole[..., first : first + width] = 1 - own[..., :width]
        return whole * causal
