"""What a module holds beside its weights, put back after a run: a run leaves no trace in it.

Otherwise what it gives would depend on the runs before it: a model that keeps embeddings of earlier
calls would hand float32 ones to a half copy.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from .randomness import GENERATORS, put_back, state_of
from .tensors import own_kinds, parts_of

_ITS_OWN = {"_parameters", "_modules", "training"}
"""Attributes of a module that are not looked into: weights are no trace of a run, but for those of
a class of their own. What packs its numbers in its first run says elsewhere that it did."""
_FIXED = {bool, int, float, str, tuple, type(None)}
_CONTAINERS = {dict, OrderedDict, list, set}
_SMALL = 1 << 16
"""Bytes of a plain tensor or buffer up to which its values are kept, too."""


@contextmanager
def untouched(module: nn.Module, saved: Saved | None = None) -> Iterator[None]:
    """Attributes, containers in them, and buffers come back as they were, or as they are saved."""
    if saved is None:
        saved = saved_of(module)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            saved.restore()


def saved_of(module: nn.Module) -> Saved:
    """What it holds now; whoever watches functions need not see that it is looked at."""
    with torch._C.DisableTorchFunction():
        return Saved(module)


class Saved:
    """What the modules of a model hold, apart from weights."""

    def __init__(self, module: nn.Module) -> None:
        modules = [part for part in parts_of(module) if not isinstance(part, LazyModuleMixin)]
        self._attributes = [(vars(part), dict(vars(part))) for part in modules]
        self._packed = [(w, w.data, _content(vars(w))) for w in own_kinds(modules)]
        self._empty: list[Any] = []
        self._contents: list[tuple[Any, Any]] = []
        for _, attributes in self._attributes:
            for name, value in attributes.items():
                kind = type(value)
                if kind in _FIXED or name in _ITS_OWN:
                    continue
                if kind in _CONTAINERS and not value:  # most: hooks that a module does not have
                    self._empty.append(value)
                elif (inside := _content(value)) is not None:
                    self._contents.append((value, inside))

    def restore(self) -> None:
        for now, before in self._attributes:
            same = map(operator.is_, map(now.get, before), before.values())
            if now.keys() != before.keys() or not all(same):
                now.clear()
                now.update(before)
        for filled in filter(None, self._empty):
            filled.clear()
        for value, inside in self._contents:
            _refill(value, inside)
        for weight, data, inside in self._packed:
            if weight.data_ptr() != data.data_ptr():
                weight.data = data
            _refill(vars(weight), inside)


def _content(value: Any, depth: int = 2) -> Any:
    """What a run could change inside a value; None for what it can only replace."""
    if type(value) in _FIXED:  # most values, and looked at before each run
        return None
    if isinstance(value, torch.Tensor):
        small = value.device.type == "cpu" and value.numel() * value.element_size() <= _SMALL
        if not small or value.is_inference():
            return None
        return value._version, value.detach().clone()
    if isinstance(value, set):
        return set(value) if depth else None
    if type(value) not in _CONTAINERS and isinstance(value, GENERATORS):
        return state_of(value)
    items = _items(value) if depth else None
    if items is None:
        return None
    return {key: (item, _content(item, depth - 1)) for key, item in items.items()}


def _items(value: Any) -> dict[Any, Any] | None:
    """What a list, a dict, or an object of a class such as a cache holds; None for others."""
    if isinstance(value, list):
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    home = type(value).__module__.partition(".")[0]
    closed = isinstance(value, nn.Module | type) or callable(value)  # configs are closed, too
    if closed or hasattr(value, "to_json_string") or not hasattr(value, "__dict__"):
        return None
    return None if home in ("builtins", "torch", "numpy", "types") else vars(value)


def _refill(value: Any, content: Any) -> None:
    """Put back what `_content` saw in a value; what did not change is not written to."""
    if isinstance(value, torch.Tensor):
        version, saved = content
        if value._version != version:
            with torch.no_grad():
                value.copy_(saved)
        return
    if type(value) not in _CONTAINERS and isinstance(value, GENERATORS):
        put_back(value, content)
        return
    if isinstance(value, set):
        if value != content:
            value.clear()
            value.update(content)
        return
    now = _items(value)
    assert now is not None
    if now.keys() != content.keys() or any(now[k] is not item for k, (item, _) in content.items()):
        items = {key: item for key, (item, _) in content.items()}
        if isinstance(value, list):
            value[:] = items.values()
        else:
            now.clear()
            now.update(items)
    for item, inside in content.values():
        if inside is not None:
            _refill(item, inside)
