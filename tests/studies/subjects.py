"""Models for the studies' tests: a GPT-2 with seven words of seed 002, and one that peeks ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import nn

from driftwalk.states import Probe

WORDS = ("The", " capital", " of", " France", " is", " Paris", ".", " Germany", " Berlin")
FRANCE = [[0, 1, 2, 3, 4, 5, 6]]
GERMANY = [[0, 1, 2, 7, 4, 8, 6]]


def gpt2(layers: int = 12) -> nn.Module:
    """GPT-2's architecture with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = tf.GPT2Config(
            n_embd=64,
            n_layer=layers,
            n_head=4,
            vocab_size=50,
            n_positions=32,
            initializer_range=0.2,
            bos_token_id=0,
            eos_token_id=0,
        )
        return tf.GPT2LMHeadModel(config).eval()


def leaky() -> nn.Module:
    """Layer 1 of 3 hands every token a little of the mean of all: also of later ones."""
    model: Any = gpt2(3)

    def peek(_: nn.Module, __: object, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        mixed = hidden + 1e-3 * hidden.mean(dim=1, keepdim=True)
        return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

    model.transformer.h[1].register_forward_hook(peek)
    return model


class Bag(nn.Module):
    """Blocks that say nothing of causality; `ahead` mixes in the mean of all tokens."""

    def __init__(self, ahead: bool) -> None:
        super().__init__()
        self.ahead = ahead
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(20, 8)
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        if self.ahead:
            x = x + x.mean(dim=1, keepdim=True)
        for layer in self.layers:
            x = layer(x)
        return x


def probe(ids: list[list[int]]) -> Probe:
    """Ids with the words that they stand for, as a tokenizer would give them."""
    tokens = tuple(tuple(WORDS[i] for i in row) for row in ids)
    texts = tuple("".join(row) for row in tokens)
    given = np.array(ids, dtype=np.int64)
    return Probe({"input_ids": given, "attention_mask": np.ones_like(given)}, "text", texts, tokens)
