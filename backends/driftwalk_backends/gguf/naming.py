"""The names that GGUF and llama.cpp have for a model's tensors, and the model's own modules.

    weight                      state                       module
    blk.3.attn_q.weight         Qcur-3, a product           model.layers.3.self_attn.q_proj
    blk.3.ffn_down.weight       ffn_out-3                   model.layers.3.mlp.down_proj
                                l_out-3                     model.layers.3

Where a model turns halves of a head and llama.cpp turns neighbours (`llama`), a converter puts the
rows of Q and K in another order, and what comes out of them is put back here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from driftwalk.dtypes import Array
from driftwalk.names import EMBED, LOGITS, NORM, layer, layer_of, place_of

from .header import Header

_TURNED = ("llama",)
"""Architectures of which llama.cpp turns neighbours, and transformers halves."""
_KNOWN = (*_TURNED, "qwen2", "qwen3")

WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Of a block: the name in the file, the module below the block."""
AROUND = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_STATES = {
    "attn_norm": "input_layernorm",
    "Qcur": "self_attn.q_proj",
    "Kcur": "self_attn.k_proj",
    "Vcur": "self_attn.v_proj",
    "kqv_out": "self_attn.o_proj:in",
    "attn_out": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_swiglu": "mlp.down_proj:in",
    "ffn_out": "mlp.down_proj",
}
"""Inside a block: the name in llama.cpp, and the module; the input of one that is `:in`."""
_WHOLES = {"self_attn.o_proj": "self_attn", "mlp.down_proj": "mlp"}
"""What gives the same as its last part."""
_OUTSIDE = {"embd": EMBED, "inp_embd": EMBED, "result_norm": NORM, "result_output": LOGITS}
_NUMBERED = re.compile(r"(\w+)-([0-9]{1,6})\Z")
_WORK = ("MUL_MAT", "ADD")
"""What makes a projection, its bias added; views and the turning have the same name."""


@dataclass(frozen=True)
class Naming:
    """The names of one file's tensors."""

    heads: int
    key_heads: int
    turned: bool

    def point(self, name: str, operation: str) -> str:
        """The point that a tensor of llama.cpp is: `layer.3.mlp.up_proj`; empty if it is none."""
        if name in _OUTSIDE:
            return _OUTSIDE[name]
        match = _NUMBERED.match(name)
        if match is None:
            return ""
        kind, number = match[1], layer(int(match[2]))
        if kind == "l_out":
            return number
        path = _STATES.get(kind, "")
        if kind in ("Qcur", "Kcur", "Vcur") and operation not in _WORK:
            return ""
        return f"{number}.{path}" if path else ""

    def arranged(self, point: str) -> Callable[[Array], Array] | None:
        """What puts the channels of a point into the model's order; None where they are."""
        if not self.turned:
            return None
        heads = {"self_attn.q_proj": self.heads, "self_attn.k_proj": self.key_heads}
        count = next((n for path, n in heads.items() if point.endswith(path)), None)
        return None if count is None else lambda array: halves(array, count)


def naming_of(header: Header) -> Naming | None:
    """How a file's tensors are called; None for an architecture that is not known here."""
    if header.architecture not in _KNOWN:
        return None
    heads = header.of_model("attention.head_count")
    key_heads = header.of_model("attention.head_count_kv") or heads
    if not isinstance(heads, int) or not isinstance(key_heads, int):
        return None
    return Naming(heads, key_heads, header.architecture in _TURNED)


def at_depth(point: str, depth: str) -> list[str]:
    """The points at a depth that a point inside a block stands for; of all others, itself."""
    if place_of(point) is None or place_of(point).is_state:  # type: ignore[union-attr]
        return [point]
    whole = next((whole for path, whole in _WHOLES.items() if point.endswith(f".{path}")), "")
    around = [f"{layer_of(point)}.{whole}"] if whole else []
    if depth == "module":
        return [point, *around]
    if depth == "sublayer":
        norm = [point] if point.endswith("layernorm") else []
        return norm + [one.replace(".self_attn", ".attn") for one in around]
    return []


def halves(array: Array, heads: int) -> Array:
    """Channels (the last axis) whose pairs are neighbours, as pairs of halves."""
    *rest, width = array.shape
    pairs = array.reshape(*rest, heads, width // heads // 2, 2)
    return pairs.swapaxes(-1, -2).reshape(array.shape)


def module_of(name: str) -> tuple[str, str]:
    """The module of a file's tensor, below the stack of blocks' parent, and `weight` or `bias`."""
    head, _, what = name.rpartition(".")
    if head in AROUND:
        return AROUND[head], what
    match = re.match(r"blk\.([0-9]{1,6})\.(\w+)\Z", head)
    path = WEIGHTS.get(match[2], "") if match else ""
    return (f"layers.{match[1]}.{path}", what) if match and path else ("", what)
