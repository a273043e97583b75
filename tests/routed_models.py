"""Tiny mixtures of experts, and copies of them whose router is faulty in one layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import transformers as tf
from torch import nn

_SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LATENT = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


def _mixtral() -> nn.Module:
    return tf.MixtralForCausalLM(tf.MixtralConfig(**_SMALL, num_local_experts=8))


def _qwen3() -> nn.Module:
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = tf.Qwen3MoeConfig(**_SMALL, **sizes, head_dim=8, norm_topk_prob=True)
    return tf.Qwen3MoeForCausalLM(config)


def _afmoe() -> nn.Module:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "num_dense_layers": 1}
    config = tf.AfmoeConfig(**_SMALL, **experts, moe_intermediate_size=16, head_dim=8)
    return tf.AfmoeForCausalLM(config)


def _deepseek_v2() -> nn.Module:
    config = tf.DeepseekV2Config(**(_SMALL | _LATENT), topk_method="group_limited_greedy")
    return tf.DeepseekV2ForCausalLM(config)


def _deepseek_v3() -> nn.Module:
    return tf.DeepseekV3ForCausalLM(tf.DeepseekV3Config(**(_SMALL | _LATENT)))


_MAKERS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "Mixtral": ("MixtralConfig", _mixtral),
    "Qwen3-MoE": ("Qwen3MoeConfig", _qwen3),
    "AFMoE": ("AfmoeConfig", _afmoe),
    "DeepSeek-V2": ("DeepseekV2Config", _deepseek_v2),
    "DeepSeek-V3": ("DeepseekV3Config", _deepseek_v3),
}
MODELS = tuple(name for name, (config, _) in _MAKERS.items() if hasattr(tf, config))


def build(name: str, seed: int = 0) -> nn.Module:
    """A seeded model. Weights of routers, which begin as zeros in some, are random; so are biases,
    large enough to decide who is chosen."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = _MAKERS[name][1]().eval()
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.ndim > 1:
                tensor.data.normal_(std=0.2)
            elif "expert_bias" in path or "e_score_correction_bias" in path:
                tensor.data.normal_(std=0.1)
            elif "norm" in path or path.endswith("bias"):
                tensor.data += 0.05 * torch.randn_like(tensor)
    return model


def router(model: nn.Module, layer: int) -> nn.Module:
    mlp = model.get_submodule(f"model.layers.{layer}.mlp")
    found = getattr(mlp, "gate", None) or getattr(mlp, "router", None)
    assert isinstance(found, nn.Module)
    return found


def router_path(model: nn.Module, layer: int) -> str:
    wanted = router(model, layer)
    return next(path for path, module in model.named_modules() if module is wanted)


def _off_by_one(router: Any) -> None:
    router.top_k += 1


def _no_bias(router: Any) -> None:
    router.e_score_correction_bias.zero_()


def _no_norm(router: Any) -> None:
    router.norm_topk_prob = False


def _mixtral_forward(norm: bool, sigmoid: bool) -> Callable[[Any, torch.Tensor], Any]:
    def forward(self: Any, x: torch.Tensor) -> Any:
        logits = nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        scores = logits.float().sigmoid() if sigmoid else logits.float().softmax(-1)
        values, indices = scores.topk(self.top_k, dim=-1)
        if norm:
            values = values / values.sum(-1, keepdim=True)
        return logits, values.to(logits.dtype), indices

    return forward


def _afmoe_forward(norm: bool, softmax: bool) -> Callable[[Any, torch.Tensor, torch.Tensor], Any]:
    def forward(self: Any, x: torch.Tensor, expert_bias: torch.Tensor) -> Any:
        logits = self.gate(x.view(-1, x.shape[-1])).float()
        scores = logits.softmax(-1) if softmax else logits.sigmoid()
        indices = (scores + expert_bias).topk(self.top_k, dim=1)[1]
        values = scores.gather(1, indices)
        if norm:
            values = values / (values.sum(-1, keepdim=True) + 1e-20)
        return logits, values * self.route_scale, indices

    return forward


class _Other:
    """A tensor function for another one, for the time of a call."""

    def __init__(self, name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._name, self._function = name, function

    def __call__(self, router: Any) -> None:
        own = type(router).forward

        def forward(module: Any, *args: Any) -> Any:
            before = getattr(torch.Tensor, self._name)
            setattr(torch.Tensor, self._name, lambda x, *_, **__: self._function(x))
            try:
                return own(module, *args)
            finally:
                setattr(torch.Tensor, self._name, before)

        router.forward = MethodType(forward, router)


def _with(forward: Callable[..., Any]) -> Callable[[Any], None]:
    def change(router: Any) -> None:
        router.forward = MethodType(forward, router)

    return change


def _no_expert_bias(router: Any) -> None:
    own = type(router).forward
    router.forward = MethodType(lambda self, x, bias: own(self, x, 0 * bias), router)


SIGMOID, SOFTMAX = "sigmoid for softmax", "softmax for sigmoid"
BIAS, NORM, TOP_K = "bias dropped", "normalisation missing", "top-k off by one"

FAULTS: dict[tuple[str, str], Callable[[Any], None]] = {
    ("Mixtral", SIGMOID): _with(_mixtral_forward(True, True)),
    ("Mixtral", NORM): _with(_mixtral_forward(False, False)),
    ("Mixtral", TOP_K): _off_by_one,
    ("Qwen3-MoE", SIGMOID): _with(_mixtral_forward(True, True)),
    ("Qwen3-MoE", NORM): _no_norm,
    ("Qwen3-MoE", TOP_K): _off_by_one,
    ("AFMoE", SOFTMAX): _with(_afmoe_forward(True, True)),
    ("AFMoE", BIAS): _no_expert_bias,
    ("AFMoE", NORM): _with(_afmoe_forward(False, False)),
    ("AFMoE", TOP_K): _off_by_one,
    ("DeepSeek-V2", SIGMOID): _Other("softmax", torch.sigmoid),
    ("DeepSeek-V2", TOP_K): _off_by_one,
    ("DeepSeek-V3", SOFTMAX): _Other("sigmoid", lambda x: torch.softmax(x, -1)),
    ("DeepSeek-V3", BIAS): _no_bias,
    ("DeepSeek-V3", NORM): _no_norm,
    ("DeepSeek-V3", TOP_K): _off_by_one,
}
"""By model and fault: what makes a router faulty."""


def faulty(model: nn.Module, name: str, fault: str, layer: int) -> nn.Module:
    """A copy with one faulty router."""
    made = copy.deepcopy(model)
    FAULTS[name, fault](router(made, layer))
    return made


ATTENTION, EXPERTS = "attention scaled", "expert halved"
NOT_ROUTERS = (ATTENTION, EXPERTS)
"""Faults of the same layer that are not its router's."""


def faulty_elsewhere(model: nn.Module, fault: str, layer: int) -> nn.Module:
    """A copy whose layer is faulty, and whose routers are right."""
    made = copy.deepcopy(model)
    block: Any = made.get_submodule(f"model.layers.{layer}")
    with torch.no_grad():
        if fault == ATTENTION:
            block.self_attn.o_proj.weight[::2].mul_(1.5)  # all of it: a norm may undo that
        else:
            block.mlp.experts.down_proj.mul_(0.5)
    return made
