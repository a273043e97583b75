"""A device that this machine need not have: its tensors are never mixed with those of others.

Its numbers are the CPU's, and so is its arithmetic: what is tested with it is where tensors lie. As
with a GPU, an operation on tensors of two devices is an error, unless it is a copy, or takes single
numbers from the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from driftwalk_backends.widening import is_composite

aten = torch.ops.aten

KIND = "meta"
"""The name it goes by: torch has no memory of its own for it, and lets others bring some."""

_COPIES = {aten.copy_.default, aten._to_copy.default}


class There(torch.Tensor):
    """A tensor on such a device."""

    numbers: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, numbers: torch.Tensor, device: torch.device) -> There:
        made = torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), dtype=numbers.dtype, device=device
        )
        made.numbers = numbers
        return made

    def __repr__(self, **_: Any) -> str:
        return f"There({self.numbers}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with SecondDevice():
            return func(*args, **(kwargs or {}))


class SecondDevice(TorchDispatchMode):
    """While it is entered, there are devices `meta:0`, `meta:1` ... that compute."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_composite(func):  # what another mode calls
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        places = {t.device for t in tensors if t.ndim or t.device.type != "cpu"}
        if len(places) > 1 and func not in _COPIES:
            raise RuntimeError(f"{func}: expected all tensors on one device, got {places}.")
        asked = kwargs.get("device")
        device = torch.device(asked or next(iter(places), "cpu"))
        if asked is not None:
            kwargs = kwargs | {"device": torch.device("cpu")}
        given = func(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
        if func._schema.is_mutable:
            return args[0] if isinstance(given, torch.Tensor) else given
        return tree_map(lambda value: _on(value, device), given)


def _numbers(value: Any) -> Any:
    return value.numbers if isinstance(value, There) else value


def _on(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor) or device.type != KIND:
        return value
    return There.of(value, device)
