"""What most people write: an embedding, three blocks, a norm, a head; and a trace of a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import driftwalk
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.torch_eager import TorchEager

WIDTH = 8
LAYERS = ["layer.0", "layer.1", "layer.2"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


class Stacked(nn.Module):
    """Embedding, blocks, norm, head: what most people write."""

    def __init__(self, blocks: nn.ModuleList | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(11, WIDTH)
        self.blocks = blocks or nn.ModuleList(Block() for _ in range(3))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def traced(module: nn.Module, **options: Any) -> tuple[driftwalk.Trace, TorchEager]:
    model = open_model(module, **options)
    backend = driftwalk.backend("torch", model)
    assert isinstance(backend, TorchEager)
    return backend.trace(make_probe(model)), backend
