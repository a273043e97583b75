"""What a cache holds, as states of points: `layer.3.key`, `layer.3.value`, `layer.3.recurrent`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from driftwalk.states import Point

from .caches import held
from .layout import Layout

KEPT = {"keys": "key", "values": "value", "conv_states": "conv", "recurrent_states": "recurrent"}
"""What a layer of a cache may hold, and what that is called in the name of a point."""


def kept(cache: Any, layout: Layout, tokens: int) -> Iterator[tuple[Point, torch.Tensor]]:
    """What each layer of a cache holds at the end: keys and values by token, other states whole."""
    cache = getattr(cache, "self_attention_cache", cache)
    if isinstance(cache, list | tuple):
        yield from _of_all_layers(cache, layout)
        return
    layers = getattr(cache, "layers", ())
    stack = next((s for s in reversed(layout.stacks) if len(s.layers) == len(layers)), None)
    if stack is None:
        return
    for point, layer in zip(stack.layers, layers, strict=True):
        for name_held, kind in KEPT.items():
            value = held(layer, name_held)
            # A layer may hold several states of a kind, by number.
            several = value.values() if isinstance(value, Mapping) else [value]
            for number, tensor in enumerate(several):
                if not isinstance(tensor, torch.Tensor) or not tensor.numel():
                    continue
                name = f"{point.name}.{kind}" + (f".{number}" if number else "")
                by_slot = name_held in ("keys", "values")
                yield (
                    Point(name, point.module),
                    (_by_slot(layer, tensor, tokens) if by_slot else tensor),
                )


def _of_all_layers(states: Sequence[Any], layout: Layout) -> Iterator[tuple[Point, torch.Tensor]]:
    """States of RWKV: each tensor has those of all layers, by number, along its last axis."""
    for number, tensor in enumerate(states):
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim:
            return
        count = tensor.shape[-1]
        stack = next((s for s in reversed(layout.stacks) if len(s.layers) == count), None)
        for index, point in enumerate(() if stack is None else stack.layers):
            name = f"{point.name}.recurrent" + (f".{number}" if number else "")
            yield Point(name, point.module), tensor[..., index]


def _by_slot(layer: Any, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """Keys or values, (row, head, slot, channel), as (row, slot, channel of all heads).

    The slots in use; of a window, those that the next token can see.
    """
    window = getattr(layer, "sliding_window", None) or getattr(layer, "max_cache_len", None)
    slides = getattr(layer, "is_sliding", False) and window is not None and tokens >= window
    fixed = getattr(layer, "max_cache_len", None) is not None  # and what is not in use is zero
    used = tensor[:, :, :tokens] if fixed else tensor
    used = tensor[:, :, -(window - 1) :] if slides and window else used
    return used.transpose(1, 2).flatten(2)
