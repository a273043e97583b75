"""Models and a third-party backend for the command-line tests: plain torch, quick to import."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.spec import Spec
from driftwalk.states import Probe
from driftwalk_backends.torch_eager import TorchEager

VOCABULARY, WIDTH, LAYERS = 50, 16, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x)) * self.after


class Tiny(nn.Module):
    """Ids to logits through a few blocks; the smallest thing that has layers."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Masked(Tiny):
    """The same, with the two inputs of a text model, both needed."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) * attention_mask[..., None]


class Normed(Tiny):
    """With a norm before the first block, as most models have one."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(input_ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Slow(Tiny):
    """Long enough to be seen in a progress bar."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        time.sleep(0.3)
        return super().forward(input_ids)


class Sleeper(Tiny):
    """Says on stderr that it runs, then takes for ever."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        sys.stderr.write("forward has begun\n")
        sys.stderr.flush()
        time.sleep(600)
        return super().forward(input_ids)


class Chatty(Tiny):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        print("a model that talks on stdout")  # noqa: T201
        return super().forward(input_ids)


def with_nan() -> nn.Module:
    """Layer 1 makes NaN, as a broken checkpoint would."""
    model = Tiny()
    with torch.no_grad():
        model.blocks[1].linear.weight[0, 0] = float("nan")
    return model


def too_large_for_fp16() -> nn.Module:
    """Layer 1 is fine in fp32; in fp16, whose numbers end at 65504, it overflows."""
    model = Tiny()
    with torch.no_grad():
        model.blocks[1].after.fill_(1e5)
    return model


def environment() -> object:
    """Not a model."""
    return {}


def leaves() -> nn.Module:
    """A script that ends the interpreter where a factory should return."""
    sys.exit(0)


class Shallow(TorchEager):
    """A third party's backend, whose port has one layer less and a different tail."""

    name = "shallow"

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, Tiny(LAYERS - 1))


class Deep(TorchEager):
    """One layer too many."""

    name = "deep"

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, Tiny(LAYERS + 1))


class Failing(TorchEager):
    """Runs into its own fault, like any program."""

    name = "failing"

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        raise ZeroDivisionError("a fault of the backend's own")
