"""What llama.cpp rounds, as driftwalk repeats it: by definition, and without llama.cpp."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from driftwalk_backends.gguf.attention import KeptInHalf
from driftwalk_backends.gguf.products import half_sum_noise, input_for

DRAWN = torch.Generator().manual_seed(0)
X = torch.randn(6, 256, generator=DRAWN)


def test_blocks_of_32_are_those_of_q8_0() -> None:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q8_0
    there = gguf.quants.dequantize(gguf.quants.quantize(X.numpy(), kind), kind)
    given = input_for("Q4_0", half_sums=False)
    assert given is not None
    assert np.allclose(given.rounded(X)[0].numpy(), there, rtol=1e-6, atol=0)


def test_blocks_of_256_have_one_step_in_float32() -> None:
    given = input_for("Q4_K", half_sums=False)
    assert given is not None
    numbers = given.rounded(X.double())[0] / (X.double().abs().amax(-1, keepdim=True) / 127)
    assert torch.allclose(numbers, numbers.round(), atol=1e-9)
    assert numbers.abs().amax() == pytest.approx(127)


def test_sums_of_blocks_are_rounded_for_minimums() -> None:
    given = input_for("Q4_1", half_sums=False)
    assert given is not None
    made, apart = given.rounded(X.double())
    assert apart is not None
    sums = made.reshape(6, 8, 32).sum(-1) + apart
    assert torch.equal(sums.half().double(), sums)


def test_weights_in_float32_round_nothing() -> None:
    assert input_for("F32", half_sums=True) is None


def test_attention_rounds_what_is_kept() -> None:
    query, key, value = (torch.randn(1, 2, 9, 16, generator=DRAWN).double() for _ in range(3))
    attention = KeptInHalf(half_sums=True, flash=False)  # in float64 no noise
    made, _ = attention(nn.Identity(), query, key, value, None, 0.25)
    q, k, v = (one.half().double() for one in (query, key, value))
    shares = torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1).half().double()
    assert torch.allclose(made, (shares @ v).transpose(1, 2), rtol=1e-12)


@pytest.mark.parametrize(("width", "lanes"), [(256, 8), (1024, 8), (64, 32)])
def test_the_noise_is_as_large_as_that_of_sums_in_half_precision(width: int, lanes: int) -> None:
    x, w = (torch.randn(40, width, generator=DRAWN).half().float() for _ in range(2))
    sums = np.zeros((40, 40, lanes), np.float16)
    factors = (one.numpy().astype(np.float32).reshape(40, -1, lanes) for one in (x, w))
    for a, b in zip(*(one.swapaxes(0, 1) for one in factors), strict=True):  # fused: rounded once
        sums = (sums.astype(np.float32) + a[:, None] * b[None]).astype(np.float16)
    error = sums.astype(np.float64).sum(-1) - (x.double() @ w.double().T).numpy()
    noise = half_sum_noise(x, lambda squares: squares @ w.square().T, lanes).numpy()
    assert 0.7 < noise.std() / error.std() < 1.4
