"""One wrong weight in 12 layers: which layers can the default gate see it in? Prints a table.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/one_weight.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transformers as tf
from torch import nn

from driftwalk.api import verify_all
from driftwalk_backends.sources import LoadedModel, open_model

LAYERS, WIDTH = 12, 256


@dataclass(frozen=True)
class Seen:
    """What the gate made of one changed weight."""

    layer: str
    matrix: str
    caught: bool
    first: str | None
    cause: str | None
    used: float
    norm: str

    @property
    def placed(self) -> bool:
        return self.caught and self.layer in (self.first, self.cause)

    def __str__(self) -> str:
        mark = "seen" if self.placed else "NOT SEEN" if not self.caught else "MISPLACED"
        return (
            f"{self.layer:9} {self.matrix:28} {mark:9} {self.used:8.2f} of the allowance "
            f"({self.norm}), first {self.first}, cause {self.cause}"
        )


def build(name: str, layers: int = LAYERS) -> nn.Module:
    torch.manual_seed(0)
    if name == "gpt2":
        config = tf.GPT2Config(n_embd=WIDTH, n_layer=layers, n_head=8, vocab_size=1000)
        return tf.GPT2LMHeadModel(config).eval()
    config = tf.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1000,
    )
    return tf.LlamaForCausalLM(config).eval()


def blocks(model: nn.Module) -> nn.ModuleList:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


def change_one_weight(module: nn.Module, layer: int, relative: float, rng: np.random.Generator):
    """A copy with one median-sized weight of a random matrix of one layer changed."""
    twin = copy.deepcopy(module)
    named = [(n, p) for n, p in blocks(twin)[layer].named_parameters() if p.ndim == 2]
    name, weight = named[rng.integers(len(named))]
    flat = weight.data.view(-1)
    flat[int((flat.abs() - flat.abs().median()).abs().argmin())] *= 1 + relative
    return twin, name


def sweep(
    model: LoadedModel,
    relative: float,
    seed: int = 0,
    blame: bool | str = "auto",
    layers: Sequence[int] | None = None,
) -> Iterator[Seen]:
    """One report per layer asked for; which matrix is drawn does not depend on those left out."""
    rng = np.random.default_rng(seed)
    every = range(len(blocks(model.module)))
    twins = [change_one_weight(model.module, layer, relative, rng) for layer in every]
    layers = every if layers is None else layers
    wrong = [twins[layer][0] for layer in layers]
    reports = verify_all(model, wrong, batch=4, length=64, blame=blame)
    for layer, report in zip(layers, reports, strict=True):
        matrix = twins[layer][1]
        first, cause = report.first_divergence, report.root_cause
        yield Seen(
            f"layer.{layer}",
            matrix,
            report.verdict == "drift",
            first.point.name if first else None,
            cause.point.name if cause else None,
            report.layer(f"layer.{layer}").tolerance.needed,
            report.layer(f"layer.{layer}").tolerance.norm,
        )


def main() -> None:
    for name in ("gpt2", "llama"):
        model = open_model(build(name))
        for relative in (1e-2, 1e-3):
            seen = list(sweep(model, relative))
            placed = sum(s.placed for s in seen)
            sys.stdout.write(f"{name}, one weight off by {relative:.1%}: {placed} of 12 placed\n")
            for s in seen:
                sys.stdout.write(f"  {s}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
