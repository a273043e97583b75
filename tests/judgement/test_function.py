"""Whether a candidate is the same function, asked of two programs in float64."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import driftwalk
from driftwalk.judge.constants import FLOAT64_SHARE

WIDTH, HIDDEN, LAYERS = 16, 32, 4
PROBE = {"x": np.random.default_rng(0).standard_normal((2, 9, WIDTH)).astype(np.float32)}
ANOTHER, SAME = "The candidate is another function", "The candidate is the reference's function"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class HandsOn(nn.Module):
    """Blocks that hand on what is to be added, as engines write them: the same function."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Late(layer) for layer in net.layers)
        self.head = net.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, residual = x, torch.zeros_like(x)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual)
        return self.head(hidden + residual)


class Late(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.norm, self.up, self.down = block.norm, block.up, block.down

    def forward(self, hidden: Any, residual: Any) -> tuple[torch.Tensor, torch.Tensor]:
        both = hidden + residual
        return self.down(F.gelu(self.up(self.norm(both)))), both


def verified(model: nn.Module, candidate: object, **options: Any) -> driftwalk.Report:
    return driftwalk.verify(model, candidate, probe=PROBE, **options)


def note(report: driftwalk.Report, begins: str) -> str:
    return next((one for one in report.notes if one.startswith(begins)), "")


def permuted(model: Net, layer: int, order: torch.Tensor) -> Net:
    twin = copy.deepcopy(model)
    block: Any = twin.layers[layer]
    with torch.no_grad():
        block.up.weight.copy_(block.up.weight[order])
        block.up.bias.copy_(block.up.bias[order])
        block.down.weight.copy_(block.down.weight[:, order])
    return twin


def folded(model: Net, layer: int) -> Net:
    """The gain of a norm folded into the product behind it: its numbers are made again."""
    twin = copy.deepcopy(model)
    block: Any = twin.layers[layer]
    with torch.no_grad():
        block.norm.weight.uniform_(0.5, 2)
        model.layers[layer].norm.weight.copy_(block.norm.weight)
        block.up.weight.mul_(block.norm.weight)
        block.norm.weight.fill_(1)
    return twin


@settings(max_examples=5, deadline=None)
@given(st.permutations(range(HIDDEN)), st.integers(0, LAYERS - 1))
def test_any_order_of_hidden_units_is_the_same_function(order: list[int], layer: int) -> None:
    model = Net()
    report = verified(model, permuted(model, layer, torch.tensor(order)))
    assert report.ok, report.first_divergence
    assert note(report, SAME)


@pytest.mark.parametrize("depth", ["block", "module"])
def test_states_inside_a_layer_explain_and_do_not_convict(depth: str) -> None:
    model = Net()
    twin = permuted(model, 1, torch.randperm(HIDDEN, generator=torch.Generator().manual_seed(0)))
    report = verified(model, twin, depth=depth)
    assert report.ok, report.first_divergence
    left = {name for name in report.coverage.missing if "layer.1.up" in name}
    assert bool(left) == (depth == "module"), "what holds another thing is told as not compared"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_numbers_that_were_made_again_are_allowed_their_rounding(dtype: str) -> None:
    model = Net()
    twin = folded(model, 2)
    candidate = twin if dtype == "fp32" else driftwalk.backend(f"emulated:{dtype}", twin)
    assert verified(model, candidate).ok


@settings(max_examples=6, deadline=None)
@given(st.floats(-4.5, -2.5), st.integers(0, LAYERS - 1))
def test_a_fault_that_half_precision_hides_is_placed(size: float, layer: int) -> None:
    """A scale that is off by 3e-5 to 3e-3: far below what bf16 rounds."""
    model = Net()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layers[layer].down.weight.mul_(1 + 10**size)
    report = verified(model, driftwalk.backend("emulated:bf16", twin))
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == f"layer.{layer}"
    assert f"at layer.{layer} " in note(report, ANOTHER)


def test_a_module_in_bf16_is_held_against_the_model_with_its_numbers_rounded() -> None:
    model = Net()
    assert verified(model, copy.deepcopy(model).bfloat16()).ok
    wrong = copy.deepcopy(model)
    wrong.layers[1].norm.eps = 1e-3
    report = verified(model, wrong.bfloat16())
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert report.culprit is not None
    assert report.culprit.module == "layers.1.norm"


def test_blocks_that_are_cut_elsewhere_are_not_accused() -> None:
    model = Net()
    report = verified(model, HandsOn(copy.deepcopy(model)))
    assert report.verdict != "drift", report.first_divergence
    assert report.layer("logits").verdict == "ok"
    assert note(report, SAME)
    wrong = HandsOn(copy.deepcopy(model))
    with torch.no_grad():
        wrong.layers[2].down.weight.mul_(1.01)
    assert verified(model, wrong).verdict == "drift"


class Rounds(Block):
    """One product in half precision: the same function, and bad arithmetic."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = F.gelu(self.up(self.norm(x)))
        weight, half = self.down.weight.bfloat16(), made.bfloat16()
        return x + F.linear(half, weight).to(x.dtype) + self.down.bias


def test_arithmetic_that_is_too_coarse_is_no_other_function() -> None:
    model = Net()
    twin = copy.deepcopy(model)
    twin.layers[1].__class__ = Rounds
    report = verified(model, twin)
    assert report.verdict == "drift"
    assert report.root_cause is not None
    assert report.root_cause.point.name == "layer.1"
    assert not note(report, ANOTHER)


def test_a_state_that_nothing_reads_is_wrong_all_the_same() -> None:
    """The truth goes on from it as from its own: both hold the same thing, and one is off."""

    class First(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return self.head(x[:, 0])

    class Last(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return torch.cat([y[:, :-1], 1.01 * y[:, -1:]], 1)

    model = First()
    twin = copy.deepcopy(model)
    twin.layers[-1].__class__ = Last
    report = verified(model, twin)
    assert report.verdict == "drift"
    assert report.first_divergence is not None
    assert report.first_divergence.point.name == "layer.3"


def test_two_programs_in_float64_have_next_to_no_room() -> None:
    assert 2**-29 < FLOAT64_SHARE < math.sqrt(2**-29)
