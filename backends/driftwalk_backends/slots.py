"""Where a tensor stands in a call or an output: a path through tuples, dicts and plain objects.

A call is the pair (args, kwargs): its slots begin with a position or with a keyword. An output's
begin with whatever it is made of; the slot of an output that is itself a tensor is empty.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

Slot = tuple[Any, ...]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]

_DEPTH = 3
"""How deep containers are looked into; what lies deeper is a cache, not a state."""


def members(value: Any) -> list[tuple[Any, Any]]:
    """What a container holds, each by its index, key or attribute; nothing of anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, type | torch.Tensor | nn.Module):
        return []
    if dataclasses.is_dataclass(value):
        named = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in named if hasattr(value, name)]
    home = type(value).__module__.partition(".")[0]
    if home in ("builtins", "torch", "transformers") or not hasattr(value, "__dict__"):
        return []
    return list(vars(value).items())


def tensors_in(value: Any, depth: int = _DEPTH) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Every tensor in a value, in order, by its slot."""
    if isinstance(value, torch.Tensor):
        yield (), value
    elif depth:
        for key, item in members(value):
            for rest, tensor in tensors_in(item, depth - 1):
                yield (key, *rest), tensor


def call_tensors(args: Args, kwargs: Kwargs) -> Iterator[tuple[Slot, torch.Tensor]]:
    """Every tensor of a call, positions before keywords."""
    yield from tensors_in(tuple(args), _DEPTH + 1)
    yield from tensors_in(dict(kwargs), _DEPTH + 1)


def get(value: Any, slot: Slot) -> Any:
    """What stands in a slot; None where there is no such slot."""
    for key in slot:
        value = dict(members(value)).get(key)
    return value


def put(value: Any, slot: Slot, tensor: Any) -> Any:
    """The value with another tensor in a slot: the same object where it can be written to."""
    if not slot:
        return tensor
    key, rest = slot[0], slot[1:]
    item = put(dict(members(value))[key], rest, tensor)
    if isinstance(value, tuple):
        items = [*value[:key], item, *value[key + 1 :]]
        made: Callable[..., Any] = type(value)
        return made(*items) if hasattr(value, "_fields") else made(items)
    if isinstance(value, list | MutableMapping):
        value[key] = item
        return value
    if isinstance(value, Mapping):
        return {**value, key: item}
    try:
        setattr(value, key, item)
    except AttributeError:  # a frozen dataclass
        value = copy.copy(value)
        object.__setattr__(value, key, item)
    return value


def from_call(args: Args, kwargs: Kwargs, slot: Slot) -> Any:
    """What stands in a slot of a call; None where there is no such slot."""
    return get(args, slot) if isinstance(slot[0], int) else get(dict(kwargs), slot)


def with_call(args: Args, kwargs: Kwargs, slot: Slot, tensor: Any) -> tuple[Args, dict[str, Any]]:
    """The same call with another tensor in a slot."""
    if isinstance(slot[0], int):
        changed: Args = put(args, slot, tensor)
        return changed, dict(kwargs)
    return args, put(dict(kwargs), slot, tensor)
