"""A deep copy of a module that computes with its own weights, whatever was patched or hooked.

Functions are not copied by `copy.deepcopy`: a `forward` put on the instance, or a hook, that holds
a module or tensor in its closure would go on using the original's. Here it gets the copy's.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError

_REGISTERED = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")

Change = Callable[[torch.Tensor], torch.Tensor]


def copied(module: nn.Module) -> nn.Module:
    """A deep copy; what cannot be copied is an error that names it."""
    memo: dict[int, Any] = {}
    for tensor in _made_tensors(module):
        # PyTorch refuses to copy what a computation left behind (weight_norm's `weight`).
        memo[id(tensor)] = tensor.detach().clone()
    try:
        twin = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the attributes' own classes raise
        raise ModelError(
            f"{type(module).__name__} cannot be copied: {_culprit(module)}: "
            f"{(str(error).splitlines() or [''])[0][:200] or type(error).__name__}. driftwalk "
            "converts a copy and leaves the model alone; take that attribute off before, or give "
            "the class a __deepcopy__."
        ) from error
    for part in twin.modules():
        own = vars(part)
        for name, value in own.items():
            if isinstance(value, types.FunctionType | functools.partial):
                own[name] = _rebound(value, memo)
        for hooks in (own[name] for name in _HOOKS):
            for key, hook in hooks.items():
                hooks[key] = _rebound(hook, memo)
    return twin


def plain_tensors(module: nn.Module, change: Change) -> None:
    """Apply `change` to the tensors that `.to()` passes over: plain attributes, in lists, dicts,
    tuples, partials, objects of one's own, modules in a list, and the closures of hooks."""
    seen: set[int] = {id(part) for part in module.modules()}
    for part in module.modules():
        own = vars(part)
        for name in [name for name in own if name not in _REGISTERED]:
            if name in _HOOKS:
                for hook in own[name].values():
                    _changed(hook, change, seen)
            else:
                own[name] = _changed(own[name], change, seen)


def _changed(value: Any, change: Change, seen: set[int]) -> Any:
    """The value with its tensors changed: itself where it can hold others, else a new one."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, nn.Parameter) else change(value)
    if value is None or isinstance(value, str | bytes | int | float | type) or id(value) in seen:
        return value
    if isinstance(value, tuple):
        items = [_changed(item, change, seen) for item in value]
        if all(a is b for a, b in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return functools.partial(
            _changed(value.func, change, seen),
            *_changed(value.args, change, seen),
            **_changed(dict(value.keywords), change, seen),
        )
    _change_inside(value, change, seen)
    return value


def _change_inside(value: Any, change: Change, seen: set[int]) -> None:
    if isinstance(value, list):
        value[:] = [_changed(item, change, seen) for item in value]
    elif isinstance(value, dict):
        for key in list(value):
            dict.__setitem__(value, key, _changed(value[key], change, seen))
    elif isinstance(value, nn.Module):
        value._apply(change)  # type: ignore[no-untyped-call]
        plain_tensors(value, change)
    elif isinstance(value, types.FunctionType):
        for cell in _filled_cells(value):
            cell.cell_contents = _changed(cell.cell_contents, change, seen)
    elif isinstance(value, types.MethodType):
        _changed(value.__self__, change, seen)
    elif _is_ones_own(value):
        for name, item in list(vars(value).items()):
            vars(value)[name] = _changed(item, change, seen)


def _rebound(value: Any, memo: dict[int, Any], depth: int = 4) -> Any:
    """The same function with the copy's modules and tensors in its closure."""
    if isinstance(value, functools.partial):
        return functools.partial(_rebound(value.func, memo), *value.args, **value.keywords)
    if not isinstance(value, types.FunctionType) or not value.__closure__ or not depth:
        return value
    if id(value) in memo and memo[id(value)] is not value:
        return memo[id(value)]
    cells = tuple(types.CellType() for _ in value.__closure__)
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
    )
    made.__kwdefaults__ = value.__kwdefaults__
    made.__dict__.update(value.__dict__)
    made.__module__, made.__qualname__ = value.__module__, value.__qualname__
    memo[id(value)] = made
    for cell, filled in zip(cells, value.__closure__, strict=True):
        try:
            content = filled.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(content, types.FunctionType):
            cell.cell_contents = _rebound(content, memo, depth - 1)
            continue
        try:
            cell.cell_contents = copy.deepcopy(content, memo)
        except Exception:  # a lock, a file: shared with the original
            cell.cell_contents = content
    return made


def _filled_cells(function: types.FunctionType) -> Iterator[types.CellType]:
    for cell in function.__closure__ or ():
        try:
            _ = cell.cell_contents
        except ValueError:
            continue
        yield cell


def _is_ones_own(value: Any) -> bool:
    """An object that only holds things: not a config, not part of a library."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and package not in (
        "builtins",
        "collections",
        "functools",
        "logging",
        "numpy",
        "threading",
        "torch",
        "transformers",
        "weakref",
    )


def _made_tensors(module: nn.Module) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def look(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.requires_grad and not value.is_leaf:
                found.append(value)
        elif isinstance(value, list | tuple):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            for item in value.values():
                look(item)

    for part in module.modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_modules"):
                look(value)
    return found


def _culprit(module: nn.Module) -> str:
    """The first attribute that does not copy, by its path."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name == "_modules":
                continue
            try:
                copy.deepcopy(value, {id(part): part})
            except Exception:
                return f"attribute {f'{path}.{name}'.lstrip('.')!r} ({type(value).__name__})"
    return "one of its attributes"
