"""A large model in float64 without a copy of its weights.

The copy's modules borrow the weights of the original, and have them in float64 only while they run:
what a model takes beside its own weights is then its largest module in float64, not twice or four
times the whole. Widening is exact, so that every number is the same as in a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

LARGE = 2**30
"""Bytes of weights: models below are copied, which is faster."""

SMALLEST = 2**14
"""Elements of a weight that is lent; smaller ones are copied."""

Weights = dict[int, nn.Parameter]


def lent_weights(module: nn.Module) -> Weights:
    """The weights to be borrowed from a model, by their ids; none where the model is not large.

    Each is the same memory under another name, for the copy's modules to hold.
    """
    weights = list(module.parameters())
    if sum(weight.nbytes for weight in weights) < LARGE:
        return {}
    return {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for weight in weights
        if type(weight) is nn.Parameter and _is_lendable(weight)
    }


def _is_lendable(weight: torch.Tensor) -> bool:
    plain = weight.layout is torch.strided and weight.device.type == "cpu"
    return plain and weight.is_floating_point() and weight.numel() >= SMALLEST


def borrow(twin: nn.Module, lent: Weights, dtype: torch.dtype) -> None:
    """Have the modules of a copy that hold lent weights run with these in another dtype."""
    ids = {id(weight) for weight in lent.values()}
    for part in list(twin.modules()):
        names = [name for name, held in part._parameters.items() if id(held) in ids]
        if names:
            # An attribute of this one module, as anybody's patch of a forward is.
            part.forward = _Borrowing(part, part.forward, names, dtype)


class _Borrowing:
    """A module's forward, its weights widened for as long as it takes."""

    def __init__(
        self, part: nn.Module, forward: Callable[..., Any], names: list[str], dtype: torch.dtype
    ) -> None:
        self._part = part
        self._forward = forward
        self._names = names
        self._dtype = dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if type(self._part) is nn.Embedding:
            with torch._C._DisableTorchDispatch():  # a lookup is exact: rows are widened, no table
                return self._forward(*args, **kwargs).to(self._dtype)
        held = self._part._parameters
        lent = {name: held[name] for name in self._names}
        try:
            for name, weight in lent.items():
                held[name] = None if weight is None else _widened(weight, self._dtype)
            return self._forward(*args, **kwargs)
        finally:
            held.update(lent)


def _widened(weight: nn.Parameter, dtype: torch.dtype) -> nn.Parameter:
    with torch._C._DisableTorchDispatch():
        return nn.Parameter(weight.detach().to(dtype), requires_grad=False)
