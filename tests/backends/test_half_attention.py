"""Attention in half precision rounds its weights, too: as the kernels do, so the yardstick."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from driftwalk_backends.emulated import HalfArithmetic

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def given(dtype: torch.dtype) -> Tensors:
    """Scores next to equal, and values with a mean, as attention that looks everywhere has."""
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 24, 16, generator=random) for _ in range(3))
    return (0.3 * query).to(dtype), key.to(dtype), (value + 5).to(dtype)


def rounded_otherwise(made: torch.Tensor, parts: Tensors, **how: Any) -> float:
    """The share of a result that is not the exact one, rounded once."""
    exact = attention(*(part.double() for part in parts), **how).to(made.dtype)
    return float((made != exact).double().mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_as_many_results_are_rounded_otherwise_as_by_the_kernel(dtype: torch.dtype) -> None:
    parts = given(dtype)
    with HalfArithmetic(dtype):
        plain = attention(*parts)
    with HalfArithmetic(dtype, rounds_attention=True):
        made = attention(*parts)
    assert made.dtype == dtype
    assert rounded_otherwise(plain, parts) < 0.01
    by_kernel = rounded_otherwise(attention(*parts), parts)
    assert 0.5 * by_kernel < rounded_otherwise(made, parts) < 2 * by_kernel


@pytest.mark.parametrize("how", ["mask", "causal", "scale", "groups"])
def test_it_is_the_attention_that_was_asked_for(how: str) -> None:
    query, key, value = given(torch.float16)
    later = torch.ones(24, 24).triu(3) > 0
    mask = torch.zeros(24, 24).masked_fill(later, -1e4).half()
    asked: dict[str, Any] = {
        "mask": {"attn_mask": mask},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.7},
        "groups": {"enable_gqa": True},
    }[how]
    if how == "groups":
        key, value = key[:, :2], value[:, :2]
    exact = dict(asked)
    if how == "mask":
        exact["attn_mask"] = mask.double()
    with HalfArithmetic(torch.float16, rounds_attention=True):
        made = attention(query, key, value, **asked)
    wide = attention(query.double(), key.double(), value.double(), **exact)
    assert 0 < float((made - wide).norm() / wide.norm()) < 2**-10
