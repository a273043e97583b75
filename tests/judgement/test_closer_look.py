"""A copy whose layer differs by less than noise is looked at from inside."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import driftwalk

WIDTH = 16


class Faint(nn.Module):
    """Adds little of what it computes; `halves`: the same sum in another order."""

    halves = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.tanh(self.inner(x))
        if not self.halves:
            return x + 1e-6 * self.outer(made)
        weight, half = self.outer.weight, WIDTH // 2
        parts = made[..., half:] @ weight[:, half:].T, made[..., :half] @ weight[:, :half].T
        return x + 1e-6 * (parts[0] + parts[1] + self.outer.bias)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Faint() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def probe() -> dict[str, Any]:
    return {"x": torch.randn(2, 12, WIDTH, generator=torch.Generator().manual_seed(1)).numpy()}


@pytest.mark.parametrize("part", ["inner", "outer"])
def test_a_fault_that_drowns_in_its_own_layer_is_found_inside(part: str) -> None:
    module = Stack()
    wrong = copy.deepcopy(module)
    getattr(wrong.layers[2], part).weight.data *= 1.05
    report = driftwalk.verify(module, wrong, probe=probe())
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.2"
    assert report.culprit is not None
    assert report.culprit.module == f"layers.2.{part}"


def test_one_layer_that_adds_in_another_order_is_no_drift() -> None:
    module = Stack()
    other = copy.deepcopy(module)
    other.layers[2].halves = True
    report = driftwalk.verify(module, other, probe=probe())
    assert report.ok, report.first_divergence
