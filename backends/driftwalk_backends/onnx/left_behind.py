"""What an exporter leaves behind in the model that it was given: noticed, put back, and named.

An exporter patches what it cannot trace, and takes its patches back; one that fails or is stopped
in between may not. Looked at are the model's weights and buffers, its configs, the classes and
forwards of its modules, and the functions of torch and of the model's own source files.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from driftwalk.errors import BackendError

from ..lending import is_large

_FUNCTIONS = (FunctionType, BuiltinFunctionType, staticmethod, classmethod, property)
_LISTED = 4
_GONE = object()


class LeftBehind:
    """Taken before an export; `put_back` afterwards says what had to be."""

    def __init__(self, module: nn.Module) -> None:
        keep = not is_large(module)
        self._tensors = [
            _Held(name, owner, key, tensor, keep) for name, owner, key, tensor in _tensors(module)
        ]
        self._configs = [(config, _values(config)) for config in _configs(module)]
        parts = list(module.named_modules())
        self._classes = [(path, part, type(part)) for path, part in parts]
        self._forwards = [(path, part, vars(part).get("forward", _GONE)) for path, part in parts]
        self._functions = [
            (name, owner, {k: v for k, v in vars(owner).items() if isinstance(v, _FUNCTIONS)})
            for name, owner in _owners(module)
        ]

    def put_back(self) -> tuple[str, ...]:
        """Make all as it was, and name what was not."""
        return (
            *self._functions_put_back(),
            *self._modules_put_back(),
            *(held.name for held in self._tensors if held.put_back()),
            *self._configs_put_back(),
        )

    def _functions_put_back(self) -> Iterator[str]:
        for name, owner, functions in self._functions:
            for key, function in functions.items():
                if vars(owner).get(key, _GONE) is not function:
                    setattr(owner, key, function)
                    yield f"{name}.{key}"

    def _modules_put_back(self) -> Iterator[str]:
        for path, part, kind in self._classes:
            if type(part) is not kind:
                part.__class__ = kind
                yield f"the class of {path or 'the model'}"
        for path, part, forward in self._forwards:
            if vars(part).get("forward", _GONE) is not forward:
                if forward is _GONE:
                    del part.forward
                else:
                    vars(part)["forward"] = forward
                yield f"the forward of {path or 'the model'}"

    def _configs_put_back(self) -> Iterator[str]:
        for config, before in self._configs:
            now = vars(config)
            for key in {**before, **now}:
                if not _alike(now.get(key, _GONE), before.get(key, _GONE)):
                    yield f"{type(config).__name__}.{key}"
                    if key in before:
                        now[key] = before[key]
                    else:
                        del now[key]


class _Held:
    """One weight or buffer: which tensor, where its numbers lie, and a copy of them."""

    def __init__(
        self, name: str, owner: dict[str, Any], key: str, tensor: torch.Tensor, keep: bool
    ) -> None:
        self.name = name
        self._owner, self._key, self._tensor = owner, key, tensor
        self._numbers = tensor.detach()
        self._asks = tensor.requires_grad
        self._version = None if tensor.is_inference() else self._numbers._version
        self._copy = self._numbers.clone() if keep else None

    def put_back(self) -> bool:
        """Whether it had to be."""
        tensor, changed = self._tensor, False
        if self._owner.get(self._key) is not tensor:
            self._owner[self._key], changed = tensor, True
        if tensor.requires_grad != self._asks:
            tensor.requires_grad_(self._asks)
            changed = True
        if _place(tensor) != _place(self._numbers):
            tensor.data, changed = self._numbers, True
        if self._version is not None and self._numbers._version != self._version:
            if self._copy is None:
                raise BackendError(
                    f"The exporter wrote into {self.name}, a weight of the model that it was "
                    "given, which is too large for a copy to be kept. Load the model anew."
                )
            if not torch.equal(self._numbers, self._copy):
                changed = True
                with torch.no_grad():
                    self._numbers.copy_(self._copy)
        return changed


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    """Where a tensor's numbers lie, and as what; of one without memory of its own, its shape."""
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        start = 0
    return start, tensor.dtype, tensor.device, tensor.shape


def _tensors(module: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, torch.Tensor]]:
    for path, part in module.named_modules():
        for owner in (part._parameters, part._buffers):
            for key, tensor in owner.items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, owner, key, tensor


def _configs(module: nn.Module) -> list[Any]:
    """Of the model and of its modules, each once."""
    configs = (vars(part).get("config") for part in module.modules())
    found = {id(config): config for config in configs if hasattr(config, "to_json_string")}
    waiting = list(found.values())
    while waiting:
        for value in vars(waiting.pop()).values():
            if hasattr(value, "to_json_string") and id(value) not in found:
                found[id(value)] = value
                waiting.append(value)
    return list(found.values())


def _values(config: Any) -> dict[str, Any]:
    """What a config holds; configs inside it are looked at by themselves."""
    values = vars(config).items()
    return {k: v if hasattr(v, "to_json_string") else copy.deepcopy(v) for k, v in values}


def _alike(now: Any, before: Any) -> bool:
    if now is before:
        return True
    if hasattr(before, "to_json_string"):
        return False
    try:
        return bool(now == before)
    except Exception:  # what cannot be compared may have been replaced
        return False


def _owners(module: nn.Module) -> list[tuple[str, Any]]:
    """Whatever has functions that a patch may stand in for."""
    kinds = {base for part in module.modules() for base in type(part).__mro__} - {object}
    homes = {sys.modules.get(kind.__module__) for kind in kinds}
    of_torch: list[Any] = [torch, torch.Tensor, torch.nn.functional]
    owners = [*of_torch, *kinds, *(home for home in homes if isinstance(home, ModuleType))]
    named = {id(owner): (_name(owner), owner) for owner in owners}
    return sorted(named.values(), key=lambda one: one[0])


def _name(owner: Any) -> str:
    return (
        owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__name__}"
    )


def sentence_on(changed: tuple[str, ...], exporter: str) -> str:
    """What a report says of it."""
    listed = ", ".join(changed[:_LISTED])
    more = f" and {len(changed) - _LISTED} more" if len(changed) > _LISTED else ""
    return f"The exporter ({exporter}) left changes behind, which were undone: {listed}{more}."
