"""What an operation of PyTorch is given, and gives: tensors, numbers, and flat lists of these.

pytree walks through any nesting, and takes longer for it than a small operation does; what is
nested more deeply, or of another kind, is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_PLAIN = {torch.Tensor, torch.nn.Parameter, int, float, bool, str, complex, type(None)}
_PLAIN |= {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator}
_LISTS = {tuple, list}

Change = Callable[[Any], Any]


def leaves_of(value: Any) -> list[Any]:
    """All that is in a value, itself if it is nothing to look into."""
    kind = type(value)
    if kind in _PLAIN:
        return [value]
    if kind in _LISTS and all(type(one) in _PLAIN for one in value):
        return list(value)
    return tree_leaves(value)


def tensors_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """All tensors among what an operation is given."""
    found: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) not in _PLAIN:
            found += [one for one in leaves_of(value) if isinstance(one, torch.Tensor)]
    return found


def changed(change: Change, value: Any) -> Any:
    """The same value with all that is in it changed."""
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor):
        return change(value)
    if kind in _LISTS and all(type(one) in _PLAIN for one in value):
        return kind(map(change, value))
    return tree_map(change, value)


def changed_arguments(
    change: Change, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an operation is given, all of it changed."""
    return (
        tuple([changed(change, value) for value in args]),
        {name: changed(change, value) for name, value in kwargs.items()},
    )


def called_with(change: Change, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What an operation gives if all that it is given is changed."""
    args, kwargs = changed_arguments(change, args, kwargs)
    return func(*args, **kwargs)


def written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors an op writes to."""
    found: list[torch.Tensor] = []
    for number, name in _targets(func):
        value = args[number] if number < len(args) else kwargs.get(name)
        found += tensors_of((value,), {})
    return found


@cache
def _targets(func: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of each argument that an op writes to."""
    if not func._schema.is_mutable:
        return ()
    return tuple(
        (number, argument.name)
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def is_random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags
