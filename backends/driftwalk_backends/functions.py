"""A plain function, or any object that can be called, as a module: then it can be run and copied.

So does a TorchScript module become a part of a plain one: it takes no hooks of its own.

The modules that it uses are parts of that module, wherever the function has them from: its closure,
its globals, a bound method's object, a partial's arguments. A copy in float64 must use copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn


class Function(nn.Module):
    """Calls a function; a copy of this module calls it with copies of the modules it uses."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleDict()
        names: dict[int, str] = {}
        for name, part in _modules_of(function, set()):
            if id(part) not in names:
                names[id(part)] = own = _free(name.strip("_").replace(".", "_") or "part", names)
                self.parts[own] = part
        self.from_globals = {n: names[id(part)] for n, part in _global_modules(function)}
        """The function's own names for modules that are its globals, and their names here."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        function = self.function
        if self.from_globals and isinstance(function, FunctionType):
            own = {name: self.parts[part] for name, part in self.from_globals.items()}
            made = FunctionType(
                function.__code__,
                function.__globals__ | own,
                function.__name__,
                function.__defaults__,
                function.__closure__,
            )
            made.__kwdefaults__ = function.__kwdefaults__
            function = made
        return function(*args, **kwargs)


def as_module(given: Callable[..., Any]) -> nn.Module:
    """A module that takes hooks; of what is none, one that calls it."""
    if isinstance(given, nn.Module) and not isinstance(given, torch.jit.ScriptModule):
        return given
    return Function(given)


def is_closed(module: nn.Module) -> bool:
    """Whether nothing inside can be looked at: TorchScript, or a function without modules."""
    parts = [part for part in module.modules() if part is not module]
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in parts)
    closed = torch.jit.ScriptModule | nn.ModuleDict | nn.ModuleList
    return (scripted or isinstance(module, Function)) and all(isinstance(p, closed) for p in parts)


def name_of(function: Callable[..., Any]) -> str:
    """What a function, or a TorchScript module, is called."""
    if isinstance(function, torch.jit.ScriptModule):
        return str(function.original_name)
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__name__", "") or type(function).__name__)


def _modules_of(value: Any, seen: set[int], name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that a function or an object has at hand, each with its name there."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield name, value
        return
    for own, part in _held(value):
        yield from _modules_of(part, seen, own)


def _held(value: Any) -> list[tuple[str, Any]]:
    """What a function or an object holds, by name, as far as modules may be in there."""
    if isinstance(value, functools.partial):
        named = [(f"part{number}", item) for number, item in enumerate(value.args)]
        return [("function", value.func), *named, *value.keywords.items()]
    if isinstance(value, MethodType):
        return [("object", value.__self__)]
    if isinstance(value, FunctionType):
        closure = list(zip(value.__code__.co_freevars, _contents(value), strict=True))
        wrapped = [("wrapped", value.__wrapped__)] if hasattr(value, "__wrapped__") else []
        return [*closure, *_global_modules(value), *wrapped]
    if isinstance(value, list | tuple):
        return [(f"part{number}", item) for number, item in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    package = type(value).__module__.partition(".")[0]
    if isinstance(value, type) or package in ("builtins", "torch", "numpy"):
        return []
    return list(getattr(value, "__dict__", {}).items())


def _contents(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None


def _global_modules(function: Any) -> list[tuple[str, nn.Module]]:
    if not isinstance(function, FunctionType):
        return []
    given = ((name, function.__globals__.get(name)) for name in function.__code__.co_names)
    return [(name, part) for name, part in given if isinstance(part, nn.Module)]


def _free(name: str, taken: dict[int, str]) -> str:
    """The name, or one like it that no other part has; nor a ModuleDict for itself."""
    own, number = name, 2
    while own in taken.values() or hasattr(nn.ModuleDict, own):
        own, number = f"{name}_{number}", number + 1
    return own
