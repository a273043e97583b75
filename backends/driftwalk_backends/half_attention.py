"""Fused attention in half precision: its weights are rounded, too, before the values are added up.

Every such kernel holds the scores in float32 and multiplies the values by weights in halves. Alone
that is about as much as rounding the result. Where the result is rounded to whole numbers next, it
decides how many of them tip over: a yardstick that rounds the result alone has none that do.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

KERNELS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
}
_MOST_SCORES = 1 << 26
"""Above it, weights are not rounded: they would take more than 256 MiB."""


def with_rounded_weights(func: Any, args: Any, kwargs: Any, made: Any, half: torch.dtype) -> Any:
    """What a kernel made in float32, its output as it is where the weights are in half."""
    named = {one.name: one.default_value for one in func._schema.arguments}
    given = {**named, **dict(zip(named, args, strict=False)), **kwargs}
    query, key, value = (given[name] for name in ("query", "key", "value"))
    scores_size = query[..., 0].numel() * key.shape[-2]
    if given["dropout_p"] or scores_size > _MOST_SCORES:
        return made
    times = query.shape[-3] // key.shape[-3]
    key, value = (part.repeat_interleave(times, -3) for part in (key, value))
    scale = query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    scores = query @ key.mT * scale
    mask = given.get("attn_mask", given.get("attn_bias"))
    if mask is not None:
        scores = scores + mask
    if given["is_causal"]:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    output = weights.to(half).to(weights.dtype) @ value / weights.sum(-1, keepdim=True)
    # Where all of a row is masked, it is for the kernel to say what that gives.
    return (torch.where(output.isfinite(), output, made[0]), *made[1:])
