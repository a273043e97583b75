"""Small generations of every outcome, for what is shown of them: made once a session."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

import driftwalk
from driftwalk.tasks.generation.result import Generation

STEPS = 5
PROMPT = {"input_ids": [[7, 3, 11, 19, 2, 23]]}


def decoder(layers: int = 3) -> nn.Module:
    """A GPT-2 of a few layers, 16 wide, with 32 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": layers, "n_head": 2, "n_positions": 32, "vocab_size": 32}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    made: nn.Module = GPT2LMHeadModel(GPT2Config(**sizes, **ends, initializer_range=0.3))
    return made.eval()


def wrong_weight(model: nn.Module) -> nn.Module:
    """One entry of layer 1 is another: wrong with a cache and without."""
    made: Any = copy.deepcopy(model)
    made.transformer.h[1].mlp.c_proj.weight.data[7, 11] += 0.5
    return made


def before_each_step(model: nn.Module, change: Callable[[Any, int], None]) -> nn.Module:
    """A copy in which `change` gets the arguments of each step after the prompt, and its number."""
    made = copy.deepcopy(model)

    def hook(_: nn.Module, given: Any, named: dict[str, Any]) -> Any:
        held = named.get("past_key_values")
        length = 0 if held is None else int(held.get_seq_length())
        if length:
            change(named, length - len(PROMPT["input_ids"][0]) + 1)
        return given, named

    made.register_forward_pre_hook(hook, with_kwargs=True)
    return made


def stale_slot(model: nn.Module) -> nn.Module:
    """From step 3 on, what layer 1 holds as value of token 4 is zero."""

    def change(named: dict[str, Any], step: int) -> None:
        if step >= 3:
            named["past_key_values"].layers[1].values[:, :, 4] = 0

    return before_each_step(model, change)


def late_positions(model: nn.Module) -> nn.Module:
    """From step 2 on, positions are one too high."""

    def change(named: dict[str, Any], step: int) -> None:
        if step >= 2:
            length = int(named["past_key_values"].get_seq_length())
            named["position_ids"] = torch.tensor([[length + 1]])

    return before_each_step(model, change)


FAULTS = {"cache": stale_slot, "shared": late_positions, "backend": wrong_weight}


@cache
def outcome(name: str) -> Generation:
    """`pass`, or drift by a cause."""
    model = decoder()
    candidate = FAULTS[name](model) if name in FAULTS else "torch,attn=eager"
    command = "driftwalk generate ./small --candidate port:small --steps 5"
    return driftwalk.generate(model, candidate, prompt=PROMPT, steps=STEPS, command=command)
