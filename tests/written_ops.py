"""Operations that models write out: functions of an input (2, 6, 8) and of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Calls(nn.Module):
    """A function of the input and of parts with weights."""

    def __init__(self, function: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.parts)


class Weighted(nn.Module):
    """A function of the input and of weights of these shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(torch.randn(shape) / 3 for shape in shapes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.weights)


def image(x: torch.Tensor) -> torch.Tensor:
    """(2, 3, 4, 4)"""
    return x.reshape(2, 3, 4, 4)


def signal(x: torch.Tensor) -> torch.Tensor:
    """(2, 6, 8): channels, time"""
    return x


def heads(x: torch.Tensor) -> torch.Tensor:
    """(2, 2, 6, 4)"""
    return x.reshape(2, 6, 2, 4).transpose(1, 2)


def rotary_by_complex(x: torch.Tensor) -> torch.Tensor:
    angles = torch.arange(6.0)[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(2, 6, 4, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)


def stacked(x: torch.Tensor) -> torch.Tensor:
    """Interleaved by real pairs, without a cast."""
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((-b, a), dim=-1).flatten(-2)


def attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    q = heads(x)
    return F.scaled_dot_product_attention(q, q.flip(-1), q.roll(1, -2), **options)


def added_mask(x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((6, 6), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
    return attention(x, attn_mask=mask)


def mixed_attention(x: torch.Tensor) -> torch.Tensor:
    """A query that was upcast, as by a norm in float32, cast back at the door."""
    q = F.layer_norm(heads(x).float(), (4,))
    k = heads(x)
    return F.scaled_dot_product_attention(q.to(k.dtype), k, k)


def grid(x: torch.Tensor, mode: str) -> torch.Tensor:
    places = torch.tanh(x.flatten()[:64].reshape(2, 4, 4, 2))
    return F.grid_sample(image(x), places, mode=mode, align_corners=False)


def scattered(x: torch.Tensor) -> torch.Tensor:
    index = torch.arange(6).flip(0)[None, :, None].expand(2, 6, 8)
    return torch.zeros_like(x).scatter_add(1, index, x) + x.gather(1, index)


def put_into(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(2, 8, 8, dtype=x.dtype)
    made[:, 1:7] = x
    made[:, 0] += x.mean(1)
    return made.masked_fill(made > 1.5, 0.25)


def indexed(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(12, 8)
    order = torch.tensor([3, 1, 0, 11, 5, 5])
    return flat[order].index_add(0, torch.tensor([0, 1, 0]), flat[:3])


def masked(x: torch.Tensor) -> torch.Tensor:
    chosen = torch.arange(12).reshape(2, 6) % 3 == 0
    made = x.clone()
    made[chosen] = x[chosen] * 0.5
    return made.masked_scatter(chosen[..., None].expand_as(x), x.flip(0))


def norms(x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=-1) + x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.irfft(torch.fft.rfft(x, dim=-1) * 0.5, n=8, dim=-1)


def mixing(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fftn(x, dim=(1, 2)).real


def short_time(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(4)
    found = torch.stft(x.reshape(2, 48), 4, window=window.to(x.dtype), return_complex=True)
    return found.abs()


def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A long convolution by way of the spectrum, as state space models have."""
    return torch.fft.irfft(torch.fft.rfft(x.float(), n=16) * torch.fft.rfft(w.float(), n=16))[
        ..., :8
    ]


def selected(x: torch.Tensor) -> torch.Tensor:
    values, places = x.softmax(-1).topk(2, dim=-1)
    return torch.zeros_like(x).scatter(-1, places, values / values.sum(-1, keepdim=True))


def quantised(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """The nearest of a few codes, as a codebook has it; each row is near one of them."""
    codes = torch.eye(8, dtype=x.dtype) * 9 + codes
    near = torch.cdist(x * 0.1 + 9 * torch.eye(6, 8, dtype=x.dtype), codes).argmin(-1)
    return F.embedding(near, codes) + x


def scan(x: torch.Tensor) -> torch.Tensor:
    """A recurrence over time, as Mamba has it."""
    state, given = torch.zeros(2, 8, dtype=x.dtype), []
    for step in range(6):
        state = state * torch.sigmoid(x[:, step]) + x[:, step]
        given.append(state)
    return torch.stack(given, 1)


def buckets(x: torch.Tensor) -> torch.Tensor:
    counts = torch.bincount(torch.arange(12) % 5, minlength=6).to(x.dtype)
    return x * counts[None, :, None] + torch.bucketize(torch.arange(6.0), torch.tensor([1.5, 3.5]))[
        None, :, None
    ].to(x.dtype)


def solved(x: torch.Tensor) -> torch.Tensor:
    square = x.float() @ x.float().transpose(1, 2) + 8 * torch.eye(6)
    return torch.linalg.solve(square, x.float()).to(x.dtype)


def relative(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """T5's buckets and Swin's bias: a table by distance, added to scores."""
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    near = torch.log(distance.abs().float().clamp(min=1)).round().long()
    scores = heads(x) @ heads(x).transpose(-1, -2) + table[near].permute(2, 0, 1)
    return scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ heads(x)


def first(x: torch.Tensor, part: nn.Module) -> torch.Tensor:
    given: torch.Tensor = part(x)[0]
    return given


def plain_float32(*shape: int) -> torch.Tensor:
    """Numbers from outside of torch: float32 in whatever dtype the model is."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    return torch.from_numpy(values)


def put_wider(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(2, 6, 8, dtype=x.dtype)
    made.index_put_((torch.tensor([0, 1]),), (x.float() * 0.5).to(x.dtype))
    return made.index_copy(1, torch.tensor([2]), x[:, :1])
