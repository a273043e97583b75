"""Where in a module a family may work: products, norms, attentions, blocks, by structure alone."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from .case import NoPlace

Q = re.compile(r"^(q|query|q_proj|q_lin|q_linear|to_q|wq|query_proj|linear_q)$")
K = re.compile(r"^(k|key|k_proj|k_lin|k_linear|to_k|wk|key_proj|linear_k)$")
V = re.compile(r"^(v|value|v_proj|v_lin|v_linear|to_v|wv|value_proj|linear_v)$")
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")


def tensors(inputs: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A probe as torch takes it, floats in one dtype."""
    made = {}
    for name, value in inputs.items():
        tensor = torch.as_tensor(np.asarray(value).copy())
        made[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return made


def run(module: nn.Module, inputs: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    """One plain run."""
    with torch.no_grad():
        return module(**tensors(inputs, dtype))


def copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)


def blocks(module: nn.Module) -> list[str]:
    """Paths of the repeated blocks: members of the longest lists of modules of one class."""
    lists = []
    for path, part in module.named_modules():
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1:
            kinds = {type(child) for child in part}
            # Two parts of its own, or, as T5 has them, a list of some.
            sizes = [(len(list(c.children())), len(list(c.modules()))) for c in part]
            large = all(parts > 1 or inside > 3 for parts, inside in sizes)
            if len(kinds) == 1 and large:
                lists.append([f"{path}.{n}".lstrip(".") for n, _ in part.named_children()])
    outer = [one for one in lists if not any(_inside(one[0], other[0]) for other in lists)]
    return [path for one in outer for path in one]


def _inside(path: str, other: str) -> bool:
    home = other.rpartition(".")[0]
    return path != other and path.startswith(f"{home}.") and path.rpartition(".")[0] != home


def in_blocks(module: nn.Module, paths: list[str]) -> list[str]:
    """Those of some paths that lie in a block; all of them where there are no blocks."""
    homes = [f"{path}." for path in blocks(module)]
    inside = [path for path in paths if any(path.startswith(home) for home in homes)]
    return inside or paths


def called(module: nn.Module, inputs: Mapping[str, Any]) -> dict[str, int]:
    """How often each module is called in one run, in order of the first call."""
    counts: dict[str, int] = {}
    handles = [
        part.register_forward_hook(lambda *_, path=path: _count(counts, path))
        for path, part in module.named_modules()
        if path
    ]
    try:
        run(module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return counts


def _count(counts: dict[str, int], path: str) -> None:
    counts[path] = counts.get(path, 0) + 1


def products(module: nn.Module) -> list[str]:
    """Linear layers, however they store their weight; GPT-2's Conv1D is one."""
    return [path for path, part in module.named_modules() if is_product(part)]


def is_product(part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


def inputs_first(part: nn.Module) -> bool:
    """Whether a product stores its weight as [inputs, outputs]."""
    return type(part).__name__ == "Conv1D"


def norms(module: nn.Module) -> list[str]:
    """Normalisations over the last axis: a weight of one axis, and an epsilon."""
    return [path for path, part in module.named_modules() if epsilon(part) is not None]


def epsilon(part: nn.Module) -> str | None:
    """The name of a norm's epsilon."""
    if "norm" not in type(part).__name__.lower():
        return None
    for name in ("eps", "variance_epsilon", "epsilon"):
        if isinstance(getattr(part, name, None), float):
            return name
    return None


@dataclass(frozen=True)
class Attention:
    """An attention with three products of its own."""

    path: str
    q: str
    k: str
    v: str
    heads: int
    size: int
    """Of one head."""


def attentions(module: nn.Module) -> list[Attention]:
    """Modules that hold a query, a key and a value product, and say how many heads there are."""
    made = []
    for path, part in module.named_modules():
        names = [n for n, child in part.named_children() if is_product(child)]
        trio = [next((n for n in names if one.match(n)), "") for one in (Q, K, V)]
        if not all(trio):
            continue
        heads = _heads(module, path)
        width = part.get_submodule(trio[0]).weight.shape[0]
        if heads and width % heads == 0:
            prefix = f"{path}." if path else ""
            q, k, v = (prefix + name for name in trio)
            made.append(Attention(path, q, k, v, heads, width // heads))
    return made


def _heads(module: nn.Module, path: str) -> int:
    parts = path.split(".") if path else []
    for depth in range(len(parts), -1, -1):
        part = module.get_submodule(".".join(parts[:depth]))
        for holder in (part, getattr(part, "config", None)):
            for name in HEADS:
                if isinstance(value := getattr(holder, name, None), int):
                    return value
    return 0


@dataclass(frozen=True)
class Mlp:
    """Two products with hidden units between them that nothing else reads."""

    path: str
    up: tuple[str, ...]
    """One, or gate and up."""
    down: str


_UP = re.compile(r"^(c_fc|fc1|up_proj|lin1|dense_h_to_4h|wi|wi_0|intermediate|fc_in|w1|w3)$")
_GATE = re.compile(r"^(gate_proj|wi_1|w2_gate)$")
_DOWN = re.compile(r"^(c_proj|fc2|down_proj|lin2|dense_4h_to_h|wo|fc_out|output|w2)$")


def mlps(module: nn.Module) -> list[Mlp]:
    """Pairs of products by the names that they usually have, whose sizes fit."""
    made = []
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        names = {n: child for n, child in part.named_children() if is_product(child)}
        ups = [n for n in names if _UP.match(n)] + [n for n in names if _GATE.match(n)]
        downs = [n for n in names if _DOWN.match(n)]
        if isinstance(part, nn.Sequential) and len(names) == 2:
            ups, downs = [next(iter(names))], [list(names)[-1]]
        if len(downs) == 1 and ups and len(ups) <= 2:
            made.append(Mlp(path, tuple(prefix + n for n in ups), prefix + downs[0]))
        # BERT: `intermediate.dense` and `output.dense`, two siblings.
        held = {n: c for n, c in part.named_children() if n in ("intermediate", "output")}
        if len(held) == 2 and all(
            is_product(getattr(c, "dense", nn.Identity())) for c in held.values()
        ):
            up, down = (f"{prefix}{n}.dense" for n in ("intermediate", "output"))
            made.append(Mlp(path, (up,), down))
        if {"ffn", "ffn_output"} <= set(names):  # ALBERT
            made.append(Mlp(path, (prefix + "ffn",), prefix + "ffn_output"))
    return [one for one in made if _fits(module, one)]


def _fits(module: nn.Module, one: Mlp) -> bool:
    hidden = {rows(module.get_submodule(path)) for path in one.up}
    return hidden == {columns(module.get_submodule(one.down))}


def rows(part: nn.Module) -> int:
    """Outputs of a product."""
    weight: torch.Tensor = part.weight  # type: ignore[assignment]
    return weight.shape[1 if inputs_first(part) else 0]


def columns(part: nn.Module) -> int:
    weight: torch.Tensor = part.weight  # type: ignore[assignment]
    return weight.shape[0 if inputs_first(part) else 1]


def replaced(module: nn.Module, path: str, new: nn.Module) -> None:
    """Put another module in a place."""
    home, _, name = path.rpartition(".")
    holder = module.get_submodule(home)
    if name not in holder._modules:
        raise NoPlace
    holder._modules[name] = new


def wrap(part: nn.Module, around: Callable[..., Any]) -> None:
    """Have `around(part, forward, *args, **kwargs)` run in place of a module's forward.

    The module is given a class of its own, so that copies of it carry the change with them.
    """
    base = type(part)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def inner(*a: Any, **k: Any) -> Any:
            return base.forward(self, *a, **k)

        return around(self, inner, *args, **kwargs)

    forward.__signature__ = inspect.signature(base.forward)  # type: ignore[attr-defined]
    members = {"forward": forward, "__module__": base.__module__, "__doc__": base.__doc__}
    part.__class__ = type(base.__name__, (base,), members)
