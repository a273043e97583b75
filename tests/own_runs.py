"""Small models of plain tensors, and what a backend gives for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from driftwalk.registry import create
from driftwalk.states import Probe
from stacked import WIDTH, Block


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind().eval()


def probe(*shape: int) -> Probe:
    return Probe(
        {"x": np.random.default_rng(0).standard_normal(shape or (2, 6, WIDTH), np.float32)}
    )


def given(spec: str, model: nn.Module, on: Probe | None = None) -> np.ndarray:
    with create(spec, model) as backend:
        (array,) = backend.run(on or probe()).values()
    return array


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b))


def to_float(array: np.ndarray) -> np.ndarray:
    from driftwalk.measure.halves import widened

    return widened(array).astype(np.float64)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)
