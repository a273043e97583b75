"""Tiny models, and the GGUF files that a converter makes of them: rightly, or with a bug."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

Weights = dict[str, np.ndarray[Any, Any]]
"""By the names that GGUF has for them."""

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_AROUND = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SIZES = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}


def tiny(kind: str = "llama", seed: int = 0, **sizes: Any) -> nn.Module:
    """A model whose attention is no mean of all tokens: weights as large as trained ones."""
    import transformers

    classes = {"llama": "Llama", "qwen2": "Qwen2"}
    config = getattr(transformers, f"{classes[kind]}Config")(**SIZES | sizes)
    config._attn_implementation = "sdpa"
    model: nn.Module = getattr(transformers, f"{classes[kind]}ForCausalLM")(config).eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=random)
            if weight.ndim == 2:
                steep = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                weight.copy_(drawn * steep / math.sqrt(weight.shape[1]))
            elif name.endswith("bias"):
                weight.copy_(0.3 * drawn)
            else:
                weight.copy_(1 + 0.2 * drawn)
    return model


def turned(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of Q or K as llama.cpp's own converter puts them: rotary pairs side by side."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def converted(model: nn.Module) -> Weights:
    """A model's weights under GGUF's names, as a converter without bugs has them."""
    config: Any = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    made: Weights = {}

    def put(name: str, path: str, short: str) -> None:
        for end in ("weight", "bias"):
            if (array := state.get(f"{path}.{end}")) is not None:
                turn = config.model_type == "llama" and short in heads
                made[f"{name}.{end}"] = turned(array, heads[short]) if turn else array

    for name, path in _AROUND.items():
        if name != "output" or not config.tie_word_embeddings:
            put(name, path, "")
    for number in range(config.num_hidden_layers):
        for name, path in _LAYER.items():
            put(f"blk.{number}.{name}", f"model.layers.{number}.{path}", name)
    return made


def write(
    path: Path,
    model: nn.Module,
    kind: str = "F32",
    change: Callable[[Weights], None] | None = None,
    more: Mapping[str, int] | None = None,
) -> Path:
    """A file of a model; matrices in a block type. `change` is the bug of a converter."""
    import gguf

    config: Any = model.config
    weights = converted(model)
    if change is not None:
        change(weights)
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = getattr(config, "rope_parameters", None) or {}
    writer.add_rope_freq_base(float(rope.get("rope_theta", getattr(config, "rope_theta", 1e4))))
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    for key, number in (more or {}).items():
        writer.add_uint32(key, number)
    wanted = gguf.GGMLQuantizationType[kind]
    for name, array in weights.items():
        if array.ndim < 2 or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        else:
            numbers = gguf.quants.quantize(np.ascontiguousarray(array, np.float32), wanted)
            writer.add_tensor(name, numbers, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantised(path: Path, kind: str) -> Path:
    """A file in float32, quantised by llama.cpp itself: what gguf's own package cannot make."""
    from llama_cpp import llama_cpp as llama

    options = llama.llama_model_quantize_default_params()
    options.ftype = {"Q4_K": 14, "Q6_K": 18, "Q5_K": 16}[kind]
    options.nthread = 1
    options.pure = True
    made = path.with_suffix(f".{kind}.gguf")
    code = llama.llama_model_quantize(str(path).encode(), str(made).encode(), options)
    assert code == 0
    return made
