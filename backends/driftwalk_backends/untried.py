"""What a probe does not try, from its inputs and the model's config: padding, windows, the cache.

Only what the model says of itself is used; a plain module without a config says little.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from driftwalk.exercised import BATCH, CACHE, PADDING, POSITIONS, WINDOW, Touched

_IDS = ("input_ids", "decoder_input_ids", "inputs_embeds", "decoder_inputs_embeds")
_ONE_SIDED = ("sliding_window", "attention_chunk_size")
"""Windows of so many positions, up to the one that looks."""
_TWO_SIDED = ("local_attention", "attention_window")
"""Windows of so many positions, half of them on either side."""


def untried(
    module: nn.Module, inputs: Mapping[str, torch.Tensor], has_positions: bool = False
) -> Iterator[Touched]:
    """Positions, padding, rows, windows and the cache; `has_positions`: a table counted them."""
    takes = inspect.signature(module.forward).parameters
    config = getattr(module, "config", None)
    causal, paired = _is_causal(module), bool(getattr(config, "is_encoder_decoder", False))
    texts = [inputs[name] for name in _IDS if name in inputs and inputs[name].ndim > 1]
    length = max((text.shape[1] for text in texts), default=0)
    most = most_positions(module)
    if length and most and not has_positions and not paired:
        advice = "" if length >= most else f"a text of up to {most} tokens"
        where = "config.max_position_embeddings"
        yield Touched(POSITIONS, where, min(length, most), most, False, advice)
    if length:
        yield from _windows(config, length)
    padding = None
    masked = any(name in inputs for name in ("input_ids", "inputs_embeds"))
    if masked and "attention_mask" in takes:  # a mask of audio or pixels is another matter
        padding = _padding(inputs.get("attention_mask"), causal and not paired)
        yield padding
    rows = min((len(tensor) for tensor in inputs.values() if tensor.ndim > 1), default=0)
    if rows:
        asked = padding is not None and padding.advice  # that is a second row already
        advice = "" if rows > 1 or asked else "a second row"
        yield Touched(BATCH, "rows", min(rows, 2), 2, False, advice)
    if config is not None and (causal or paired) and "past_key_values" in takes:
        yield Touched(CACHE, "past_key_values", int("past_key_values" in inputs), 1)


def most_positions(module: nn.Module) -> int | None:
    """How many positions the config allows."""
    most = getattr(_text(getattr(module, "config", None)), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _text(config: Any) -> Any:
    """The part of a config that is about text."""
    getter = getattr(config, "get_text_config", None)
    return getter() if callable(getter) else config


def _is_causal(module: nn.Module) -> bool:
    """Whether attention looks back only: the parts of a transformers model say so."""
    if not hasattr(module, "config"):
        return False
    said = [part.__dict__["is_causal"] for part in module.modules() if "is_causal" in vars(part)]
    if said:
        return any(value is True for value in said)
    can = getattr(module, "can_generate", None)
    return bool(callable(can) and can())


def _padding(mask: torch.Tensor | None, causal: bool) -> Touched:
    """The sides that have padding; a causal model never looks at padding on the right."""
    sides = [] if mask is None or mask.ndim != 2 else _sides(mask != 0)
    tried = any(side != "right" for side in sides) if causal else bool(sides)
    advice = ""
    if not tried:
        advice = (
            "a shorter text padded on the left (attention_mask 0 in front)"
            if causal
            else "a second, shorter text"
        )
    return Touched(PADDING, " and ".join(sides) or "none", int(tried), 1, False, advice)


def _sides(keep: torch.Tensor) -> list[str]:
    """Where rows of a mask are zero: before the first one, after the last one, between."""
    before = keep.cumsum(1) == 0
    after = keep.flip(1).cumsum(1).flip(1) == 0
    between = ~keep & ~before & ~after
    found = {"left": before, "right": after, "inner": between}
    return [name for name, where in found.items() if bool(where.any())]


def _windows(config: Any, length: int) -> Iterator[Touched]:
    """Windows of attention; one that is not shorter than the probe hides nothing from anyone."""
    config = _text(config)
    kinds = getattr(config, "layer_types", None)
    names = [name for name in _TWO_SIDED if getattr(config, name, None)] or list(_ONE_SIDED)
    for name in names:
        sizes = getattr(config, name, None)
        sizes = sizes if isinstance(sizes, list | tuple) else [sizes]
        if not all(type(size) is int and size > 0 for size in sizes) or not sizes:
            continue
        if isinstance(kinds, list | tuple) and not any("full" not in str(k) for k in kinds):
            continue  # every layer looks at everything
        window = max(sizes) // 2 + 1 if name in _TWO_SIDED else max(sizes)
        advice = "" if length > window else f"a text of more than {window} tokens"
        yield Touched(WINDOW, f"config.{name}", length, window, False, advice)
