"""Tiny models that keep a cache, prompts for them, and faults that show only in decoding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import nn

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 8
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _gpt2() -> nn.Module:
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(n_embd=64, n_layer=4, n_head=4, vocab_size=128, n_positions=128, **_ENDS)
    )


def _t5() -> nn.Module:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            d_model=64,
            d_kv=16,
            d_ff=96,
            num_layers=3,
            num_heads=4,
            vocab_size=128,
            decoder_start_token_id=0,
        )
    )


def _whisper() -> nn.Module:
    layers = {
        f"{half}_{name}": size
        for half in ("encoder", "decoder")
        for name, size in (("layers", 3), ("attention_heads", 4), ("ffn_dim", 96))
    }
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            d_model=64,
            vocab_size=128,
            num_mel_bins=16,
            max_source_positions=30,
            max_target_positions=64,
            decoder_start_token_id=3,
            **layers,
            **_ENDS,
        )
    )


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": _gpt2,
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**SIZES, head_dim=16)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=WINDOW)
    ),
    "mistral": lambda: tf.MistralForCausalLM(
        tf.MistralConfig(**SIZES, head_dim=16, sliding_window=WINDOW)
    ),
    "t5": _t5,
    "whisper": _whisper,
    "mamba": lambda: tf.MambaForCausalLM(
        tf.MambaConfig(hidden_size=64, num_hidden_layers=4, vocab_size=128, state_size=8, **_ENDS)
    ),
}
ROTARY = ("llama", "qwen3", "gemma3", "mistral")
WINDOWED = ("gemma3", "mistral")


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MAKERS[name]().eval()


def prompt(name: str, rows: int = 2, length: int = 8, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, 128, (rows, length))
    if name == "t5":
        return {"input_ids": rng.integers(4, 128, (rows, 9)), "decoder_input_ids": ids[:, :2]}
    if name == "whisper":
        features = rng.standard_normal((rows, 16, 60)).astype(np.float32)
        return {"input_features": features, "decoder_input_ids": ids[:, :2]}
    return {"input_ids": ids}


def padded(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Three rows of unequal length, padded on the right, as tokenizers do."""
    given = prompt(name, 3, 8, seed)
    mask = np.ones((3, 8), np.int64)
    mask[1, 5:], mask[2, 3:] = 0, 0
    return {"input_ids": np.where(mask, given["input_ids"], 0), "attention_mask": mask}


# ---- faults: each takes a copy of a model, and breaks it for steps after the first ----


def _layers(cache: Any) -> Any:
    return getattr(cache, "self_attention_cache", cache).layers


def _length(cache: Any) -> int:
    return 0 if cache is None else int(cache.get_seq_length())


def _after(port: nn.Module, change: Callable[[Any, int], None]) -> None:
    """Have something done to the cache after each step: to it, and the tokens seen so far."""

    def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        cache = output.get("past_key_values")
        if cache is not None:
            change(_layers(cache), _length(cache))

    port.register_forward_hook(hook, with_kwargs=True)


def _before(port: nn.Module, change: Callable[[dict[str, Any], int, int], None]) -> None:
    """Have the inputs of each step after the first changed."""

    def hook(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        seen = _length(kwargs.get("past_key_values"))
        if seen:
            kwargs = dict(kwargs)
            change(kwargs, seen, kwargs["input_ids"].shape[1])
        return args, kwargs

    port.register_forward_pre_hook(hook, with_kwargs=True)


def position_off_by_one(port: nn.Module) -> None:
    def change(kwargs: dict[str, Any], seen: int, tokens: int) -> None:
        kwargs["position_ids"] = torch.arange(seen + 1, seen + tokens + 1)[None]

    _before(port, change)


def mask_ignores_padding(port: nn.Module) -> None:
    def change(kwargs: dict[str, Any], seen: int, tokens: int) -> None:
        if "attention_mask" in kwargs:
            kwargs["attention_mask"] = torch.ones_like(kwargs["attention_mask"])

    _before(port, change)


def offset_of_padded_length(port: nn.Module) -> None:
    def change(kwargs: dict[str, Any], seen: int, tokens: int) -> None:
        rows = kwargs["input_ids"].shape[0]
        kwargs["position_ids"] = torch.arange(seen, seen + tokens).expand(rows, -1)

    _before(port, change)


def stale_slot(port: nn.Module, layer: int = 2, slot: int = 12) -> None:
    def change(layers: Any, seen: int) -> None:
        if seen == slot + 1:
            keys = layers[layer].keys
            keys[:, :, -1] = keys[:, :, -2]

    _after(port, change)


def neighbours_cache(port: nn.Module, layer: int = 2) -> None:
    def change(layers: Any, seen: int) -> None:
        layers[layer].values = layers[layer - 1].values.clone()

    _after(port, change)


def wrong_scale(port: nn.Module, layer: int = 1) -> None:
    def change(layers: Any, seen: int) -> None:
        values = layers[layer].values
        scale = values.abs().amax(-1, keepdim=True) / 127
        layers[layer].values = (values / scale).round() * scale * 1.05

    _after(port, change)


def keys_before_rotary(port: nn.Module, layer: int = 2) -> None:
    def change(layers: Any, seen: int) -> None:
        keys = layers[layer].keys
        at = torch.arange(seen - keys.shape[2], seen)[None]
        kinds = (
            getattr(port.config, "layer_types", None) if "Gemma3" in type(port).__name__ else None
        )
        given = (keys, at, kinds[layer]) if kinds else (keys, at)
        cos, sin = port.model.rotary_emb(*given)
        half = keys.shape[-1] // 2
        turned = torch.cat([-keys[..., half:], keys[..., :half]], -1)
        layers[layer].keys = keys * cos[:, None] - turned * sin[:, None]

    _after(port, change)


def window_off_by_one(port: nn.Module, layer: int = 2) -> None:
    def change(layers: Any, seen: int) -> None:
        if seen > WINDOW:
            layers[layer].keys[:, :, 0] = layers[layer].keys[:, :, 1]
            layers[layer].values[:, :, 0] = layers[layer].values[:, :, 1]

    _after(port, change)


def not_reordered(port: nn.Module, layers: tuple[int, ...] = (2,)) -> None:
    """Of beam search: some layers' caches, or all, stay as they are while beams change places."""

    def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        cache = output.get("past_key_values") or output.get("cache_params")
        held = _layers(cache) if cache is not None else []
        for number in layers or range(len(held)):
            if held:
                held[number].reorder_cache = lambda _: None

    port.register_forward_hook(hook, with_kwargs=True)


def cropped_too_far(port: nn.Module) -> None:
    """Of drafted tokens: one that was right is taken back with those that were wrong."""

    def change(layers: Any, seen: int) -> None:
        for layer in layers:
            layer.crop = partial(_crop, layer, 1)

    _after(port, change)


def cropped_too_little(port: nn.Module) -> None:
    """Of drafted tokens: one that was wrong stays."""

    def change(layers: Any, seen: int) -> None:
        for layer in layers:
            layer.crop = partial(_crop, layer, -1)

    _after(port, change)


def kept_of_the_draft(port: nn.Module, layer: int = 2) -> None:
    """Of drafted tokens: in one layer, a wrong one takes the place of the last right one."""

    def change(layers: Any, seen: int) -> None:
        layers[layer].crop = partial(_swap, layers[layer])

    _after(port, change)


def _crop(layer: Any, more: int, count: int) -> None:
    type(layer).crop(layer, count - more if count else 0)


def _swap(layer: Any, count: int) -> None:
    if count < 0:
        for held in (layer.keys, layer.values):
            held[:, :, count - 1] = held[:, :, count]
    type(layer).crop(layer, count)


def pieces_begin_at_0(port: nn.Module) -> None:
    """Of a prompt in pieces: the positions of each begin again."""

    def change(kwargs: dict[str, Any], seen: int, tokens: int) -> None:
        if tokens > 1:
            kwargs["position_ids"] = torch.arange(tokens)[None]

    _before(port, change)


def rows_mixed(port: nn.Module, layer: int = 2) -> None:
    """Of a batch: each row but the first has the values of the one before it, for one slot."""

    def change(layers: Any, seen: int) -> None:
        values = layers[layer].values
        if len(values) > 1 and seen == 10:
            values[1:, :, 9] = values[:-1, :, 9].clone()

    _after(port, change)


def stale_state(port: nn.Module, layer: int = 2) -> None:
    """Of a Mamba: what a layer keeps is not updated once."""
    kept: list[torch.Tensor] = []

    def hook(_: Any, args: Any, kwargs: Any, output: Any) -> None:
        held = output.cache_params.layers[layer] if output.get("cache_params") else None
        if held is not None and kwargs["input_ids"].shape[1] > 1:
            kept.clear()
        elif held is not None:
            kept.append(held.recurrent_states[0].clone())
            if len(kept) == 5:
                held.recurrent_states[0] = kept[-2]

    port.register_forward_hook(hook, with_kwargs=True)


def weight(port: nn.Module) -> None:
    """In every run, with a cache or without."""
    matrices = [p for n, p in port.named_parameters() if ".2." in n and p.ndim == 2]
    with torch.no_grad():
        matrices[-1][3, 5] += 0.2


def broken(model: nn.Module, fault: Callable[[nn.Module], None]) -> nn.Module:
    port = copy.deepcopy(model)
    fault(port)
    return port


def with_sink(name: str = "llama", token: int = 1, size: float = 3000.0) -> nn.Module:
    """A model in which one token, by a few channels, outweighs all others in every layer, as the
    first one does in large language models that were trained."""
    model: Any = build(name)
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows[token, [5, 17, 40]] = torch.tensor([-size, size, -size])
    return model
