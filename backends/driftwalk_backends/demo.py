"""The built-in models: tiny, seeded, made from a config; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

VOCABULARY = 256 + 2
PAD, START = 256, 257
LAYERS = 6
MAX_LENGTH = 256


class ByteTokenizer:
    """Text as UTF-8 bytes behind a start token: small enough to need no file."""

    pad_token_id = PAD

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return [[START, *text.encode("utf-8", "replace")] for text in texts]

    def words(self, ids: Sequence[int]) -> list[str]:
        names = {PAD: "<pad>", START: "<s>"}
        return [names.get(i) or bytes([i]).decode("latin-1") for i in ids]


def decoder(seed: int = 0) -> nn.Module:
    """A GPT-2-like causal language model, 6 layers, 64 wide."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=MAX_LENGTH,
        n_embd=64,
        n_layer=LAYERS,
        n_head=4,
        bos_token_id=START,
        eos_token_id=START,
        pad_token_id=PAD,
        initializer_range=0.1,
    )
    return _seeded(GPT2LMHeadModel, config, seed)


def encoder(seed: int = 0) -> nn.Module:
    """A BERT-like masked language model, 6 layers, 64 wide."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=MAX_LENGTH,
        pad_token_id=PAD,
        initializer_range=0.1,
    )
    return _seeded(BertForMaskedLM, config, seed)


def _seeded(kind: type, config: object, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = kind(config)
        for name, parameter in model.named_parameters():
            # Zero biases and unit gains would hide a dropped bias or gain from every check.
            if name.endswith("bias") or "norm" in name.lower() or "ln_" in name:
                parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


DEMOS = {"demo:decoder": decoder, "demo:encoder": encoder}


def faulty_decoder(layer: int, seed: int = 0) -> nn.Module:
    """The decoder with one weight of one layer changed by a tenth: what a real bug looks like."""
    model = decoder(seed)
    weight = model.get_submodule(f"transformer.h.{layer}.mlp.c_proj").weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        weight[7, 11] += 0.1 * weight.abs().max()
    return model
