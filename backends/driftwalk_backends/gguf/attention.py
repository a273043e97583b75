"""Attention over keys and values that are kept in half precision, as llama.cpp computes it.

Queries and probabilities are rounded to half precision too, since a product takes both its factors
in one type. On CPUs that sum such products in half precision (products.py) the yardstick has an
error of that size; the truth has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..tensors import unseen
from .products import LANES, half, half_sum_noise


@dataclass(frozen=True)
class KeptInHalf:
    """An attention function of transformers."""

    half_sums: bool
    flash: bool
    """llama.cpp's flash attention: it sums over keys one by one."""

    @property
    def name(self) -> str:
        way = "stepwise" if self.flash else "plain"  # transformers reads what is called flash
        return f"driftwalk_{way}_{'half' if self.half_sums else 'wide'}"

    def __str__(self) -> str:
        return "queries, keys, probabilities and values in fp16"

    def put(self, module: Any) -> bool:
        """Have a transformers model compute so; False where it cannot be told to."""
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import eager_mask

        if not hasattr(module, "set_attn_implementation"):
            return False
        AttentionInterface.register(self.name, self)
        AttentionMaskInterface.register(self.name, eager_mask)
        module.set_attn_implementation(self.name)
        return bool(module.config._attn_implementation == self.name)

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (one.repeat_interleave(groups, 1) for one in (key, value))
        with unseen(query, key, value):
            query, key, value = half(query), half(key), half(value)
        lanes = 4 * LANES if self.flash else LANES
        scores = _summed(query, key.transpose(-1, -2), lanes, self.half_sums)
        scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attention_mask is not None:
            scores = scores + attention_mask[..., : key.shape[-2]].to(scores.dtype)
        shares = torch.softmax(scores, -1)
        with unseen(shares):
            shares = half(shares)
        # Flash attention keeps its sums of values in half precision on every CPU.
        lanes = 1 if self.flash else LANES
        made = _summed(shares, value, lanes, self.half_sums or self.flash)
        return made.transpose(1, 2).contiguous(), None


def _summed(a: torch.Tensor, b: torch.Tensor, lanes: int, in_half: bool) -> torch.Tensor:
    made = a @ b
    if in_half and a.dtype == torch.float32:
        with unseen(made):
            made = made + half_sum_noise(a, lambda squares: squares @ b.square(), lanes)
    return made
