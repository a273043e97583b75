"""Roundoffs on purpose: of operations that are a product and a sum, the product's is among them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from driftwalk_backends.jitter import Jittered

ROUNDOFF = 2.0**-24
SIZE = 24


def _cancelled(kind: str, large: float, seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A norm of which product and sum are about `large`, and the result about 1 / 100 of it."""
    random = torch.Generator().manual_seed(seed)
    image = 1 + torch.rand(2, 4, SIZE, SIZE, generator=random, dtype=torch.float64) / 100
    norm: nn.Module = {
        "batch": nn.BatchNorm2d(4),
        "group": nn.GroupNorm(2, 4),
        "layer": nn.LayerNorm(SIZE),
    }[kind].double()
    if kind == "batch":
        norm.running_mean.fill_(1)
        norm.running_var.fill_(1 / large**2)
    return norm.eval(), image


@given(st.sampled_from(["batch", "group", "layer"]), st.floats(1, 1e3), st.integers(0, 99))
def test_the_product_of_a_norm_is_rounded_too(kind: str, large: float, seed: int) -> None:
    norm, image = _cancelled(kind, large, seed)
    with torch.no_grad():
        exact = norm(image)
        with Jittered(ROUNDOFF, seed):
            off = (norm(image) - exact).abs()
    scale = (exact.std() / image.std()).item()  # of the input, in the result
    assert scale * ROUNDOFF / 4 < off.mean() < scale * ROUNDOFF
    assert off.mean() > 4 * ROUNDOFF * exact.abs().mean()  # the roundoff of the result alone


@pytest.mark.parametrize("large", [1.0, 1e3])
def test_so_is_that_of_a_product_that_is_added(large: float) -> None:
    torch.manual_seed(0)
    one = large * (1 + torch.rand(1000, dtype=torch.float64) / 100)
    with Jittered(ROUNDOFF):
        off = torch.addcmul(-torch.full_like(one, large), one, torch.ones_like(one))
    error = (off - (one - large)).abs().mean()
    assert ROUNDOFF * large / 4 < error < ROUNDOFF * large
