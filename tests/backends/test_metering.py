"""What a run takes is seen in one: states, what is alive between them, choices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import zoo
from driftwalk.registry import create
from driftwalk.states import Probe
from driftwalk_backends.metering import needs_of
from driftwalk_backends.sources import open_model

WIDTH, WIDE, TOKENS = 8, 64, 6


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDE), nn.Linear(WIDE, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.sigmoid(self.up(x)))


class Stack(nn.Module):
    def __init__(self, layers: int, chooses: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.chooses = chooses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.topk(WIDTH, -1).values if self.chooses else x


def needs(model: nn.Module, batch: int = 1, depth: str = "block"):
    rows = np.random.default_rng(0).standard_normal((batch, TOKENS, WIDTH), np.float32)
    return needs_of(open_model(model.eval()), Probe({"x": rows}), depth)


def test_states_and_what_is_inside_are_counted():
    found = needs(Stack(3))
    assert found.states == (TOKENS * WIDTH,) * 4  # embed, and three layers
    assert found.inside == sum(found.states) + 3 * TOKENS * (WIDE + WIDTH)
    assert sum(needs(Stack(3), depth="module").states) == found.inside
    assert found.widest == WIDTH * WIDE


def test_what_is_alive_between_states_is_that_of_one_block():
    models = (Stack(2), 1), (Stack(9), 1), (Stack(2), 3)
    few, many, larger = (needs(*given).activations for given in models)
    wide, narrow = (8 * TOKENS * width for width in (WIDE, WIDTH))
    # The stream, what a matrix gave, a function of it, and three times that for roundoffs.
    assert wide * 5 + narrow <= few <= wide * 6 + 4 * narrow
    assert many == few, "what a block is done with is gone"
    assert larger == 3 * few


def test_a_choice_is_seen():
    assert needs(Stack(2, chooses=True)).chooses
    assert not needs(Stack(2)).chooses


@pytest.mark.parametrize("spec", ["torch", "truth", "emulated:bf16"])
@pytest.mark.parametrize("lent", [False, True])
def test_the_weights_of_a_copy(spec, lent, monkeypatch):
    from driftwalk_backends import lending

    monkeypatch.setattr(lending, "SMALLEST", 2)
    model = open_model(zoo.build("gpt2"))
    count = sum(weight.numel() for weight in model.module.parameters())
    width = {"torch": 0, "truth": 8, "emulated:bf16": 4}[spec]  # copied first, and then cast
    rest = sum(8 * buffer.numel() for buffer in model.module.buffers())
    with create(spec, model) as backend:
        taken = backend.weights_taken(lent)
    most = rest if lent else width * count + rest
    least = 0 if lent else width * count
    assert least <= taken <= most
