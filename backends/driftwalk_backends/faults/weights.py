"""Faults in weights: where a model has room for them, how a copy gets them."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import nn

from .fault import Fault, Setting, Subject

BITS = {"fp32": (23, 8), "fp16": (10, 5), "bf16": (7, 8)}
"""Mantissa and exponent bits of the formats a weight is flipped in."""
_INTEGERS = {"fp32": torch.int32, "fp16": torch.int16, "bf16": torch.int16}
_FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROLES = ("sign", "exponent_high", "exponent_low", "mantissa_high", "mantissa_low")
SCALES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def find_flip(subject: Subject, point: str, rng: Random, role: str) -> Fault | None:
    found = subject.parameters(point)
    if not found:
        return None
    name = rng.choice(sorted(found))
    shape = tuple(found[name].shape)
    index = [rng.randrange(size) for size in shape]
    # A flip in a row that no token looks up would change nothing.
    tables = {f"{t.path}.weight": t.rows for t in subject.anatomy.tables}
    if name in tables and subject.anatomy.parameters[name][:1] == (point,):
        index[0] = rng.choice(tables[name])
    mantissa, exponent = BITS[subject.dtype]
    low, high = {
        "sign": (mantissa + exponent, mantissa + exponent),
        "exponent_high": (mantissa + exponent - 1, mantissa + exponent - 1),
        "exponent_low": (mantissa, mantissa + exponent // 2 - 1),
        "mantissa_high": (mantissa // 2, mantissa - 1),
        "mantissa_low": (0, mantissa // 2 - 1),
    }[role]
    bit = rng.randint(low, high)
    flat = 0
    for place, size in zip(index, shape, strict=True):
        flat = flat * size + place
    return Fault(
        "bit_flip",
        subject.anatomy.parameters[name],
        name,
        f"{name}{index}: bit {bit} ({role}) of its {subject.dtype} flipped",
        {"role": role, "bit": bit, "element": flat, "dtype": subject.dtype},
    )


def flip(module: nn.Module, fault: Fault) -> None:
    flat = module.get_parameter(fault.target).data.view(-1)
    place, dtype = int(fault.settings["element"]), str(fault.settings["dtype"])
    value = flat[place : place + 1].to(_FLOATS[dtype])
    bit = torch.tensor([1], dtype=_INTEGERS[dtype]) << int(fault.settings["bit"])
    flat[place : place + 1] = (value.view(_INTEGERS[dtype]) ^ bit).view(_FLOATS[dtype])


def find_scale(subject: Subject, point: str, rng: Random, scale: float) -> Fault | None:
    found = [name for name, p in subject.parameters(point).items() if p.ndim > 1]
    if not found:
        return None
    name = rng.choice(sorted(found))
    text = f"{name} times {1 + scale:.9g}"
    return Fault("scaled_weight", subject.anatomy.parameters[name], name, text, {"scale": scale})


def scale(module: nn.Module, fault: Fault) -> None:
    module.get_parameter(fault.target).mul_(1 + float(fault.settings["scale"]))


def find_bias(subject: Subject, point: str, rng: Random, _: Any) -> Fault | None:
    named = subject.parameters(point)
    found = [name for name, p in named.items() if name.endswith("bias") and p.ndim == 1]
    if not found:
        return None
    name = rng.choice(sorted(found))
    return Fault("dropped_bias", subject.anatomy.parameters[name], name, f"{name} left out")


def drop_bias(module: nn.Module, fault: Fault) -> None:
    module.get_parameter(fault.target).zero_()


def find_transpose(subject: Subject, point: str, rng: Random, _: Any) -> Fault | None:
    found = [m for m in subject.anatomy.matrices.get(point, ()) if m.inputs == m.outputs]
    if not found:
        return None
    path = rng.choice(found).path
    text = f"{path}.weight used transposed"
    return Fault("transposed_weight", subject.owners(path), f"{path}.weight", text)


def transpose(module: nn.Module, fault: Fault) -> None:
    weight = module.get_parameter(fault.target)
    weight.copy_(weight.t().clone())


def find_stale(subject: Subject, point: str, rng: Random, _: Any) -> Fault | None:
    blocks = subject.anatomy.blocks
    here = blocks.get(point)
    if here is None:
        return None
    twins = [
        path
        for path in dict.fromkeys(blocks.values())
        if path != here and _alike(subject, here, path)
    ]
    if not twins:
        return None
    other = rng.choice(twins)
    points = tuple(p for p, path in blocks.items() if path == here)
    text = f"{here} holds the weights of {other}"
    return Fault("stale_layer", points, here, text, {"other": other})


def _alike(subject: Subject, here: str, other: str) -> bool:
    a, b = (dict(subject.module.get_submodule(path).named_parameters()) for path in (here, other))
    shared = a.keys() & b.keys()
    same_stack = here.rpartition(".")[0] == other.rpartition(".")[0]
    return same_stack and bool(shared) and all(a[n].shape == b[n].shape for n in shared)


def make_stale(module: nn.Module, fault: Fault) -> None:
    other = dict(module.get_submodule(str(fault.settings["other"])).named_parameters())
    for name, parameter in module.get_submodule(fault.target).named_parameters():
        if name in other:
            parameter.copy_(other[name])


# ---- heads ----


def find_heads(kind: str, subject: Subject, point: str, rng: Random) -> Fault | None:
    heads, calls = subject.anatomy.heads.get(point, 0), subject.anatomy.matrices.get(point, ())
    # Queries, keys and values take the same tensor; the next one takes what the heads gave.
    mixed = next((m for m in calls if not m.first), None)
    if heads < 2 or mixed is None or mixed.inputs % heads:
        return None
    a, b = rng.sample(range(heads), 2)
    text = f"heads {a} and {b} exchanged" if kind == "swapped_heads" else f"head {a} gives zero"
    settings: dict[str, Setting] = {"a": a, "size": mixed.inputs // heads}
    settings["axis"] = 0 if mixed.inputs_first else 1
    if kind == "swapped_heads":
        settings["b"] = b
    path = mixed.path
    return Fault(kind, subject.owners(path), f"{path}.weight", f"{path}: {text}", settings)


def _head(module: nn.Module, fault: Fault, which: str) -> torch.Tensor:
    """The part of the output projection that takes one head's values."""
    size = int(fault.settings["size"])
    weight = module.get_parameter(fault.target).data
    return weight.narrow(int(fault.settings["axis"]), int(fault.settings[which]) * size, size)


def swap_heads(module: nn.Module, fault: Fault) -> None:
    a, b = _head(module, fault, "a"), _head(module, fault, "b")
    kept = a.clone()
    a.copy_(b)
    b.copy_(kept)


def zero_head(module: nn.Module, fault: Fault) -> None:
    _head(module, fault, "a").zero_()
