"""Faults in weights: where a model has room for them, how a copy gets them."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch
from torch import nn

from .fault import BITS, Fault, NoPlace, Setting, Subject, choose

_INTEGERS = {"fp32": torch.int32, "fp16": torch.int16, "bf16": torch.int16}
_FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROLES = ("sign", "exponent_high", "exponent_low", "mantissa_high", "mantissa_low")
SCALES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def find_flip(subject: Subject, point: str, rng: Random, role: str) -> Fault:
    parameters = subject.parameters(point)
    name = choose(rng, sorted(parameters))
    shape = tuple(parameters[name].shape)
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
    element = int(np.ravel_multi_index(index, shape)) if shape else 0
    text = f"{index}: bit {bit} ({role}) of its {subject.dtype} flipped"
    settings: dict[str, Setting] = {"role": role, "bit": bit, "element": element}
    return subject.in_parameter("bit_flip", name, text, **settings, dtype=subject.dtype)


def flip(module: nn.Module, fault: Fault) -> None:
    flat = module.get_parameter(fault.target).data.view(-1)
    place, dtype = int(fault.settings["element"]), str(fault.settings["dtype"])
    value = flat[place : place + 1].to(_FLOATS[dtype])
    bit = torch.tensor([1], dtype=_INTEGERS[dtype]) << int(fault.settings["bit"])
    flat[place : place + 1] = (value.view(_INTEGERS[dtype]) ^ bit).view(_FLOATS[dtype])


def find_scale(subject: Subject, point: str, rng: Random, scale: float) -> Fault:
    parameters = subject.parameters(point)
    name = choose(rng, sorted(name for name, p in parameters.items() if p.ndim > 1))
    return subject.in_parameter("scaled_weight", name, f" times {1 + scale:.9g}", scale=scale)


def scale(module: nn.Module, fault: Fault) -> None:
    module.get_parameter(fault.target).mul_(1 + float(fault.settings["scale"]))


def find_bias(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    parameters = subject.parameters(point)
    biases = (name for name, p in parameters.items() if name.endswith("bias") and p.ndim == 1)
    return subject.in_parameter("dropped_bias", choose(rng, sorted(biases)), " left out")


def drop_bias(module: nn.Module, fault: Fault) -> None:
    module.get_parameter(fault.target).zero_()


def find_transpose(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    matrices = subject.anatomy.matrices.get(point, ())
    path = choose(rng, (m for m in matrices if m.inputs == m.outputs)).path
    return subject.in_matrix("transposed_weight", path, ".weight used transposed")


def transpose(module: nn.Module, fault: Fault) -> None:
    weight = module.get_parameter(fault.target)
    weight.copy_(weight.t().clone())


def find_stale(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    here, points = subject.block(point)
    others = (path for path in dict.fromkeys(subject.anatomy.blocks.values()) if path != here)
    other = choose(rng, (path for path in others if _alike(subject, here, path)))
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


def find_two_heads(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    path, (a, b), settings = _heads(subject, point, rng)
    text = f": heads {a} and {b} exchanged"
    return subject.in_matrix("swapped_heads", path, text, **settings, b=b)


def find_head(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    path, (a, _), settings = _heads(subject, point, rng)
    return subject.in_matrix("zeroed_head", path, f": head {a} gives zero", **settings)


def _heads(subject: Subject, point: str, rng: Random) -> tuple[str, list[int], dict[str, Setting]]:
    """The matrix that mixes the heads of a point, and two of them."""
    heads, calls = subject.anatomy.heads.get(point, 0), subject.anatomy.matrices.get(point, ())
    # Queries, keys and values take the same tensor; the next one takes what the heads gave.
    mixed = next((m for m in calls if not m.first), None)
    if heads < 2 or mixed is None or mixed.inputs % heads:
        raise NoPlace
    chosen = rng.sample(range(heads), 2)
    axis = 0 if mixed.inputs_first else 1
    return mixed.path, chosen, {"a": chosen[0], "size": mixed.inputs // heads, "axis": axis}


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
