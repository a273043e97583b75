"""Tiny models that compute in several dtypes: every block casts what it is given, as users do."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import driftwalk
from driftwalk.states import Probe

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 4, 50
FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (3, 16))
PROBE = Probe({"input_ids": IDS})
HALF_PAIR: Mapping[str, torch.dtype] = {"blocks.2": BF16, "blocks.3": BF16}


class Block(nn.Module):
    """Attention and an MLP, before each a norm, computed in whatever its weights are in."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.ln_1.weight.dtype)
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(rows, length, WIDTH))


class Net(nn.Module):
    """Ids to logits; what is handed on is cast to what the next part is in."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x.to(self.norm.weight.dtype))
        return self.head(x.to(self.head.weight.dtype))


class FromFloats(nn.Module):
    """The same with a float input: a projection in place of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = self.proj(features)
        for block in self.blocks:
            x = block(x)
        return x


def net(seed: int = 0, kind: type[nn.Module] = Net) -> Any:
    """A model with a seed, noise on its biases and gains as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = kind().eval()
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim < 2:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def mixed(model: nn.Module, parts: Mapping[str, torch.dtype]) -> Any:
    """A copy with some of its parts in another dtype."""
    twin = copy.deepcopy(model)
    for path, dtype in parts.items():
        twin.get_submodule(path).to(dtype)
    return twin


def casting_hooks(model: nn.Module, paths: Mapping[str, torch.dtype]) -> Any:
    """A copy with some blocks in another dtype, which hooks cast for: the usual way to do it."""
    twin = copy.deepcopy(model)

    def cast(value: Any, dtype: torch.dtype) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floats else value

    for path, dtype in paths.items():
        block = twin.get_submodule(path).to(dtype)

        def before(_: Any, args: Any, kwargs: Any, dtype: torch.dtype = dtype) -> Any:
            return tree_map(lambda value: cast(value, dtype), (args, kwargs))

        def after(_: Any, args: Any, output: Any) -> Any:
            if isinstance(output, torch.Tensor):
                return output.float()
            return tuple(cast(value, torch.float32) for value in output)

        block.register_forward_pre_hook(before, with_kwargs=True)
        block.register_forward_hook(after)
    return twin


def verified(model: Any, candidate: Any, **options: Any) -> driftwalk.Report:
    return driftwalk.verify(model, candidate=candidate, probe=PROBE, **options)


def scaled(module: nn.Module, path: str, factor: float) -> nn.Module:
    """The module itself, with one of its tensors times a factor."""
    with torch.no_grad():
        module.get_parameter(path).mul_(factor)
    return module
