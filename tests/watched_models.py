"""Models with experts and odd ones, and what a probe is seen to exercise of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import transformers as tf
from torch import nn

import zoo
from driftwalk.exercised import Exercised, Touched
from driftwalk.states import Probe
from driftwalk_backends.calls import call, inputs_for, quietly
from driftwalk_backends.exercised import Watch
from driftwalk_backends.model_outputs import named_outputs
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from driftwalk_backends.touching import Touching

_SMALL = zoo._GROUPED | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _seeded(model: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.data.normal_(std=0.2)
    return model.eval()


def _qwen2_moe() -> nn.Module:
    config = tf.Qwen2MoeConfig(
        **_SMALL,
        num_experts=16,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return _seeded(tf.Qwen2MoeForCausalLM(config))


def _deepseek() -> nn.Module:
    config = tf.DeepseekV3Config(
        **(_SMALL | {"num_key_value_heads": 4}),
        moe_intermediate_size=16,
        n_routed_experts=16,
        n_shared_experts=1,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=None,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
    )
    return _seeded(tf.DeepseekV3ForCausalLM(config))


def _gpt_oss() -> nn.Module:
    config = tf.GptOssConfig(
        **_SMALL, num_local_experts=16, num_experts_per_tok=1, head_dim=8, sliding_window=8
    )
    return _seeded(tf.GptOssForCausalLM(config))


def _mixtral() -> nn.Module:
    config = tf.MixtralConfig(**_SMALL, num_local_experts=16, num_experts_per_tok=1)
    return _seeded(tf.MixtralForCausalLM(config))


def _switch() -> nn.Module:
    config = tf.SwitchTransformersConfig(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_experts=16,
        vocab_size=99,
        decoder_start_token_id=0,
    )
    return _seeded(tf.SwitchTransformersForConditionalGeneration(config))


def _granite() -> nn.Module:
    config = tf.GraniteMoeConfig(**_SMALL, num_local_experts=16, num_experts_per_tok=1)
    return _seeded(tf.GraniteMoeForCausalLM(config))


class Odd(nn.Module):
    """A plain module that uses weights in ways that no hook on a module sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 8)
        self.places = nn.Embedding(12, 8)
        self.scale = nn.Parameter(torch.randn(6, 8))
        self.bank = nn.Parameter(torch.randn(5, 8, 8) / 3)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
        )
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.kept = self.experts[3].weight.t()  # memory of a weight under another name
        self.adapter = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1])) * self.scale[2:4].sum(0)
        x = x + self.scale[[0]]
        x = x @ self.bank[1] + x @ self.bank.transpose(1, 2)[ids[0, 0]]
        for block in self.blocks:
            x = block(x)
        x = x + self.experts[1](x) + x @ self.kept
        self.experts[2](x[:, :0])  # no token is routed to it
        return self.head(x)


MODELS: dict[str, Any] = {
    **{name: lambda name=name: zoo.build(name) for name in zoo.NAMES},
    "mixtral16": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "switch": _switch,
    "granite_moe": _granite,
    "odd": Odd,
}
MOE = ("mixtral16", "qwen2_moe", "deepseek_v3", "gpt_oss", "switch", "granite_moe")


def probe_of(name: str, model: nn.Module) -> Probe:
    if name == "odd":
        return Probe({"ids": np.array([[3, 3, 1, 7, 9]])})
    return make_probe(open_model(model))


def watched(
    model: nn.Module, probe: Probe
) -> tuple[Touching, dict[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    with quietly(model):
        inputs = inputs_for(model, probe, torch.device("cpu"))
        touching = Touching(model, inputs)
        with touching:
            call(model, inputs)
        # Watched, an attention of torch.nn takes another way: what must hold is the plain run.
        outputs = named_outputs(call(model, inputs))
    return touching, inputs, outputs


def exercised(model: nn.Module, probe: Probe) -> Exercised:
    watch = Watch()
    with quietly(model):
        inputs = inputs_for(model, probe, torch.device("cpu"))
        watch.run(model, inputs, lambda: call(model, inputs))
    found = watch.known(inputs)
    assert found is not None
    return found


def item_of(found: Exercised, what: str, where: str = "") -> Touched:
    (item,) = [item for item in found.of(what) if item.where.endswith(where)]
    return item
