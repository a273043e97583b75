"""Faults in code: a wrong constant, a wrong function, a wrong argument handed to a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import nn

from ..activations import identify, variant_of
from ..anatomy import argument, with_argument
from .fault import Fault, Setting, Subject, choose

EPSILONS = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "layer_norm_epsilon")


def find_epsilon(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    places = (
        (path, name, value)
        for path, part in subject.modules(point).items()
        for name in EPSILONS
        if isinstance(value := getattr(part, name, None), float) and 0 < value < 1e-2
    )
    path, name, value = choose(rng, places)
    wrong = 1e-6 if value > 5e-6 else 1e-5  # what frameworks differ by; files have it in float32
    text = f"{path}.{name} is {wrong:g} instead of {value:g}"
    points = subject.anatomy.modules[path]
    return Fault("wrong_epsilon", points, path, text, {"name": name, "value": wrong})


def set_epsilon(module: nn.Module, fault: Fault) -> None:
    part = module.get_submodule(fault.target)
    setattr(part, str(fault.settings["name"]), float(fault.settings["value"]))


def find_activation(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    path, name, right = choose(rng, _activations(subject, point))
    text = f"{path}.{name} is {variant_of(right)[0]} instead of {right}"
    settings: dict[str, Setting] = {"name": name, "right": right}
    return Fault("wrong_activation", subject.anatomy.modules[path], path, text, settings)


@cache
def _activations(subject: Subject, point: str) -> list[tuple[str, str, str]]:
    activations = []
    for path, part in subject.modules(point).items():
        if identify(part):
            continue  # it is found where it is held, not what it wraps
        held = {**part._modules, **{k: v for k, v in vars(part).items() if callable(v)}}
        activations += [(path, n, kind) for n, v in held.items() if (kind := identify(v))]
    return activations


def set_activation(module: nn.Module, fault: Fault) -> None:
    _, make = variant_of(str(fault.settings["right"]))
    setattr(module.get_submodule(fault.target), str(fault.settings["name"]), make())


# ---- what a block is handed ----


@dataclass(frozen=True)
class Altered:
    """A pre-hook that changes one argument of a block's call; it copies and exports with it."""

    name: str
    change: str

    def __call__(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = argument(block, args, kwargs, self.name)
        changed = _CHANGES[self.change](given, args, kwargs)
        return None if changed is None else with_argument(block, args, kwargs, self.name, changed)


def _leaky(mask: Any, args: Any, kwargs: Any) -> Any:
    """Every query sees what the next one may see."""
    if not isinstance(mask, torch.Tensor):
        # Fused attention is told "causal" by the absence of a mask.
        stream = args[0] if args else kwargs["hidden_states"]
        length = stream.shape[1]
        square = torch.ones(length, length, dtype=torch.bool, device=stream.device)
        return torch.tril(square, diagonal=1)[None, None]
    return torch.cat([mask[..., 1:, :], mask[..., -1:, :]], dim=-2)


def _unpadded(mask: Any, args: Any, kwargs: Any) -> Any:
    """Every row of the batch sees what any of them may see."""
    if not isinstance(mask, torch.Tensor):
        return None
    widest = mask.any(0, keepdim=True) if mask.dtype == torch.bool else mask.amax(0, keepdim=True)
    return widest.expand_as(mask).clone()


def _shifted(angles: Any, args: Any, kwargs: Any) -> Any:
    """Every position but the first turns by the angle of the one before it."""
    return tuple(torch.cat([t[..., :1, :], t[..., :-1, :]], dim=-2) for t in angles)


_CHANGES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "leaking_mask": _leaky,
    "ignored_padding": _unpadded,
    "shifted_positions": _shifted,
}


def _find_altered(
    kind: str, names: tuple[str, ...], subject: Subject, point: str, rng: Random
) -> Fault:
    block, points = subject.block(point)
    name = choose(rng, names)
    text = {
        "leaking_mask": f"{block} sees one position ahead",
        "ignored_padding": f"{block} ignores padding in {name}",
        "shifted_positions": f"{block} is handed {name} shifted by one",
    }[kind]
    return Fault(kind, points, block, text, {"argument": name})


def find_leak(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    names = ("attention_mask",) if subject.handed(point).causal else ()
    return _find_altered("leaking_mask", names, subject, point, rng)


def find_padding(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    return _find_altered("ignored_padding", subject.handed(point).padded, subject, point, rng)


def find_shift(subject: Subject, point: str, rng: Random, _: Any) -> Fault:
    """Rotary angles handed to a block, or a table of positions in the embedding or a block."""
    if angles := subject.handed(point).angles:
        return _find_altered("shifted_positions", angles, subject, point, rng)
    tables = {table.path: table for table in subject.anatomy.tables}
    places = []
    for name, parameter in subject.parameters(point).items():
        owner = name.rpartition(".")[0]
        table = tables.get(owner)
        in_block = point in subject.anatomy.blocks and table is not None
        counts = table is not None and table.counts
        # Added as a whole, without a lookup (ViT), or by a table that counts by itself (BART).
        is_grid = tuple(parameter.shape[-2:]) == subject.anatomy.embedded and "weight" not in name
        lookup = isinstance(subject.module.get_submodule(owner), nn.Embedding)
        named = lookup and table is None and "position" in name
        if in_block or counts or is_grid or named:
            places.append(name)
    name = choose(rng, sorted(places))
    return subject.in_parameter("shifted_positions", name, " shifted by one position")


def alter(module: nn.Module, fault: Fault) -> None:
    if "argument" in fault.settings:
        hook = Altered(str(fault.settings["argument"]), fault.kind)
        module.get_submodule(fault.target).register_forward_pre_hook(hook, with_kwargs=True)
    else:  # position i takes the vector of position i + 1
        table = module.get_parameter(fault.target)
        table.copy_(table.roll(-1, dims=table.ndim - 2))
