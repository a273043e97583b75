"""What finding the points costs, in forward passes.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/points_cost.py [CASE ...]

Per round, in turns: one plain pass, `find_layout`, and all that a backend does on its first run
(`LoadedModel.layout`: also which weights the probe uses, and that nothing is left changed). The
least of all rounds, by the processor's clock, which neighbours on a shared machine disturb less.
Models of 680 to 880 modules: a stack, stages of small convolutions (0.1 ms a module: the worst that
can be, since what is done for a module costs as much), no stack, and a stack with something between
its blocks.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import nn

import torch_nets
from driftwalk_backends import crosscheck
from driftwalk_backends.calls import call, inputs_for, quietly
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

ROUNDS = 6


class NoStack(nn.Module):
    """170 parts whose names have no numbers, with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 1, 1)
        for pair in list(product("abcdefghij", "abcdefghijklmnopq")):
            self.add_module("".join(pair), torch_nets.Basic(32, 32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *parts = self.children()
        x = first(x)
        for part in parts:
            x = part(x) * 0.5
        return x


class Between(nn.Module):
    """170 blocks in a list, with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, 1, 1)
        self.blocks = nn.ModuleList(torch_nets.Basic(32, 32, 1) for _ in range(170))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x) * 0.5
        return x


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 1024}
    return BertModel(BertConfig(num_hidden_layers=48, **sizes))


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "bert": (bert, {"batch": 4, "length": 128}),
    "resnet": (lambda: torch_nets.ResNet(16, (12, 24, 46, 20)), {}),
    "no stack": (NoStack, {}),
    "between": (Between, {}),
}


def clocked(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measure(name: str) -> str:
    make, sizes = CASES[name]
    torch.manual_seed(0)
    module = make().eval()
    given = None if sizes else {"x": torch.randn(2, 3, 64, 64).numpy()}
    probe = make_probe(open_model(module), given, **sizes)
    inputs = inputs_for(module, probe, torch.device("cpu"))
    runs = 0

    def run(**extra: Any) -> Any:
        nonlocal runs
        runs += 1
        return call(module, inputs, **extra)

    plain, points, first = [], [], []
    with quietly(module):
        run()
        runs = 0
        for _ in range(ROUNDS):
            plain.append(clocked(lambda: call(module, inputs)))
            points.append(clocked(lambda: crosscheck.find_layout(module, run)))
            first.append(clocked(lambda: open_model(module).layout(module, inputs, run)))
    one, modules = min(plain), sum(1 for _ in module.modules())
    return (
        f"| {name} | {modules} | {one:.3f} | {min(points) / one:.2f} | {min(first) / one:.2f} "
        f"| {runs / (2 * ROUNDS):g} |"
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    lines = ["| model | modules | pass, s | points, passes | first run, passes | runs |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    lines += [measure(case) for case in sys.argv[1:] or CASES]
    sys.stdout.write("\n".join([*lines, ""]))
