"""Small models of our own, each with other honest ways to write it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, COUNT, LAYERS, WORDS, LENGTH = 32, 4, 4, 61, 24
Tensor = torch.Tensor


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads = COUNT
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(mixed(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of several heads."""
    parts = [one.unflatten(-1, (COUNT, -1)).transpose(-3, -2) for one in (q, k, v)]
    made = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    return made.transpose(-3, -2).flatten(-2)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    """Attention and MLP, a norm before each; or both beside one another."""

    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.parallel = parallel
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(), Mlp()

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            return (x + self.attn(self.norm1(x))) + self.mlp(self.norm2(x))
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder; `forms` are the ways in which ports have written the same."""

    def __init__(self, parallel: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList([Block(parallel) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.embedded(input_ids))))

    def embedded(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))

    def body(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    @property
    def forms(self) -> dict[str, Callable[[Any], nn.Module]]:
        from . import own_forms

        return own_forms.BESIDE if self.layers[0].parallel else own_forms.IN_A_ROW


class Cnn(nn.Module):
    """Convolutions, batch norms, a ReLU each, an average and a product."""

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
            self.bn1 = nn.BatchNorm2d(outputs)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(outputs)
            self.act = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            made = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
            return self.act(made + x if made.shape == x.shape else made)

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 8), (8, 8), (8, 8), (8, 16), (16, 16))
        self.blocks = nn.Sequential(*(self.Block(*pair) for pair in sizes))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 7)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(image)).flatten(1))


class Reader(nn.Module):
    """Two LSTMs and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16)
        self.first = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.second = nn.LSTM(24, 24, batch_first=True)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 40)

    def forward(self, ids: Tensor) -> Tensor:
        x, _ = self.first(self.table(ids))
        y, _ = self.second(x)
        return self.head(self.norm(x + y))


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Random weights, also where initialisers leave zeros and ones."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().eval()
        for name, value in model.named_parameters():
            if value.ndim == 1:
                value.data += 0.1 * torch.randn_like(value)
            elif "tokens" in name or "places" in name:
                value.data *= 0.5
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return model


def _ids(name: str, most: int) -> Callable[[], Mapping[str, np.ndarray]]:
    return lambda: {name: np.random.default_rng(0).integers(0, most, (3, 12))}


def _image() -> Mapping[str, np.ndarray]:
    return {"image": np.random.default_rng(0).standard_normal((2, 3, 12, 12), dtype=np.float32)}


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Mapping[str, np.ndarray]]]] = {
    "gpt": (lambda: seeded(Gpt), _ids("input_ids", WORDS)),
    "parallel-gpt": (lambda: seeded(lambda: Gpt(parallel=True)), _ids("input_ids", WORDS)),
    "cnn": (lambda: seeded(Cnn), _image),
    "reader": (lambda: seeded(Reader), _ids("ids", 40)),
}
