"""Tiny seeded models of every architecture driftwalk promises to understand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as tf
from torch import nn

WIDTH, HEADS, LAYERS, VOCABULARY = 32, 4, 3, 99

_COMMON = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
_GROUPED = _COMMON | {"num_key_value_heads": 2}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _gpt2() -> nn.Module:
    return tf.GPT2LMHeadModel(
        tf.GPT2Config(
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            vocab_size=VOCABULARY,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


def _gemma3() -> nn.Module:
    config = tf.Gemma3TextConfig(**_GROUPED, head_dim=8, sliding_window=8, **_SPECIAL)
    return tf.Gemma3ForCausalLM(config)


def _modernbert() -> nn.Module:
    config = tf.ModernBertConfig(
        **_COMMON, **_SPECIAL, cls_token_id=1, sep_token_id=2, local_attention=8
    )
    return tf.ModernBertForMaskedLM(config)


def _t5() -> nn.Module:
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            d_model=WIDTH,
            d_kv=8,
            d_ff=2 * WIDTH,
            num_layers=LAYERS,
            num_heads=HEADS,
            vocab_size=VOCABULARY,
            decoder_start_token_id=0,
        )
    )


def _bart() -> nn.Module:
    return tf.BartForConditionalGeneration(
        tf.BartConfig(
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=2 * WIDTH,
            decoder_ffn_dim=2 * WIDTH,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            forced_eos_token_id=None,
            **_SPECIAL,
        )
    )


def _vit() -> nn.Module:
    return tf.ViTForImageClassification(
        tf.ViTConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            image_size=16,
            patch_size=4,
        )
    )


def _whisper() -> nn.Module:
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=2 * WIDTH,
            decoder_ffn_dim=2 * WIDTH,
            vocab_size=VOCABULARY,
            num_mel_bins=8,
            max_source_positions=12,
            max_target_positions=24,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            **_SPECIAL,
        )
    )


_MAKERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": _gpt2,
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_COMMON)),
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_GROUPED)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**_GROUPED)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_GROUPED, head_dim=8)),
    "gemma3": _gemma3,
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**_GROUPED, **_SPECIAL)),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**_GROUPED, num_local_experts=4)),
    "bert": lambda: tf.BertForMaskedLM(tf.BertConfig(**_COMMON)),
    "roberta": lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**_COMMON)),
    "distilbert": lambda: tf.DistilBertForMaskedLM(
        tf.DistilBertConfig(
            dim=WIDTH, hidden_dim=2 * WIDTH, n_layers=LAYERS, n_heads=HEADS, vocab_size=VOCABULARY
        )
    ),
    "albert": lambda: tf.AlbertForMaskedLM(tf.AlbertConfig(**_COMMON, embedding_size=16)),
    "modernbert": _modernbert,
    "t5": _t5,
    "bart": _bart,
    "vit": _vit,
    "whisper": _whisper,
}

NAMES = tuple(_MAKERS)
FINAL_NORM = {"gpt2", "gpt_neox", "llama", "mistral", "qwen3", "gemma3", "phi3", "mixtral"} | {
    "modernbert",
    "t5",
    "vit",
    "whisper",
}
"""Architectures that have a final norm."""

RAW_LAST = {"vit"} | ({"modernbert"} if tf.__version__.startswith("4.") else set())
"""Those whose hidden_states[-1] has nevertheless not gone through it."""

NORMED = FINAL_NORM - RAW_LAST
"""Architectures whose hidden_states[-1] has gone through the final norm."""

TWO_STACKS = {"t5", "bart", "whisper"}


def build(name: str, seed: int = 0) -> nn.Module:
    """A seeded model with noise on biases and gains, which initialisers leave at 0 and 1."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _MAKERS[name]().eval()
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.05 * torch.randn_like(parameter)
    return model
