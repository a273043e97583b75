"""A run leaves no trace in a module: caches it fills, tables it extends, are as they were before.

Otherwise what a run gives depends on the runs before it: a model that keeps embeddings of earlier
calls would hand float32 ones to a copy in another dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

_ITS_OWN = {"_parameters", "_modules", "training"}
_SMALL = 1 << 16
"""Bytes of a plain tensor or buffer up to which its values are kept, too."""

Attributes = dict[str, Any]


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Attributes, containers in them, and buffers come back; weights are not looked at."""
    parts = [part for part in module.modules() if not isinstance(part, LazyModuleMixin)]
    before = [(part, _kept(vars(part))) for part in parts]
    try:
        yield
    finally:
        for part, kept in before:
            _put_back(vars(part), kept)


def _kept(attributes: Attributes) -> dict[str, tuple[Any, Any]]:
    return {
        name: (value, _content(value, 2))
        for name, value in attributes.items()
        if name not in _ITS_OWN
    }


def _content(value: Any, depth: int) -> Any:
    """What a run could change inside a value; None for what it can only replace."""
    if isinstance(value, torch.Tensor):
        small = value.device.type == "cpu" and value.numel() * value.element_size() <= _SMALL
        version = None if value.is_inference() else value._version
        return (version, value.detach().clone() if small else None)
    if not depth:
        return None
    if isinstance(value, list):
        return [(item, _content(item, depth - 1)) for item in value]
    if isinstance(value, dict):
        return {key: (item, _content(item, depth - 1)) for key, item in value.items()}
    if isinstance(value, set):
        return set(value)
    if _holds_things(value):
        return {key: (item, _content(item, depth - 1)) for key, item in vars(value).items()}
    return None


def _put_back(attributes: Attributes, kept: dict[str, tuple[Any, Any]]) -> None:
    for name in [name for name in attributes if name not in kept and name not in _ITS_OWN]:
        del attributes[name]
    for name, (value, content) in kept.items():
        if attributes.get(name) is not value:
            attributes[name] = value
        _refill(value, content)


def _refill(value: Any, content: Any) -> None:
    if content is None:
        return
    if isinstance(value, torch.Tensor):
        version, known = content
        if known is not None and version is not None and value._version != version:
            with torch.no_grad():
                value.copy_(known)
    elif isinstance(value, list):
        if len(value) != len(content) or any(
            a is not b for a, (b, _) in zip(value, content, strict=True)
        ):
            value[:] = [item for item, _ in content]
        for item, inside in content:
            _refill(item, inside)
    elif isinstance(value, dict):
        if value.keys() != content.keys() or any(
            value[k] is not v for k, (v, _) in content.items()
        ):
            value.clear()
            value.update({key: item for key, (item, _) in content.items()})
        for item, inside in content.values():
            _refill(item, inside)
    elif isinstance(value, set):
        if value != content:
            value.clear()
            value.update(content)
    else:
        _put_back_object(value, content)


def _put_back_object(value: Any, content: dict[str, tuple[Any, Any]]) -> None:
    own = vars(value)
    for name in [name for name in own if name not in content]:
        del own[name]
    for name, (item, inside) in content.items():
        if own.get(name) is not item:
            own[name] = item
        _refill(item, inside)


def _holds_things(value: Any) -> bool:
    """A cache class or the like; modules, functions and configs are not looked into."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, nn.Module | type)
        and not callable(value)
        and not hasattr(value, "to_json_string")
        and kind.__module__.partition(".")[0] not in ("builtins", "torch", "numpy", "types")
    )
