"""The program of a side, and the numbers that it stores: the model's, rounded ones, or others."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from driftwalk.adapter import Program
from driftwalk.dtypes import FORMATS

from .loaded import LoadedModel
from .tensors import TORCH_DTYPES

_FINE = "fp32"
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def program_of(own: LoadedModel, model: LoadedModel) -> Program:
    """What a module computes, to be run in float64 beside the model.

    Where it stores numbers in a coarser format than the model does, it is held against the model
    with its numbers rounded likewise, name by name.
    """
    coarse = dict(_coarse(own.module, model.module))
    rounded = _rounded(model.module, coarse)
    beside = model.module if rounded is None else rounded
    return Program(
        own,
        lambda: replace(own, module=_moved(own.module, beside)),
        None if rounded is None else replace(model, module=rounded),
    )


def _moved(module: nn.Module, model: nn.Module) -> nn.Module:
    """A copy in which numbers that the model does not store are moved by up to half a unit."""
    values = {_content(tensor) for tensor in _stored(model)}
    made, drawn = copy.deepcopy(module), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in _stored(made):
            if _content(tensor) not in values:
                half = 2 * torch.rand(tensor.shape, generator=drawn) - 1
                off = 1 + half.double() * _roundoff(tensor)
                tensor.data = tensor.data.double() * off.to(tensor.device)
    return made


def _stored(module: nn.Module) -> Iterator[torch.Tensor]:
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            yield tensor


def _content(tensor: torch.Tensor) -> bytes:
    """The numbers of a tensor, whatever its format, as a hash."""
    values = tensor.detach().cpu().double().contiguous().reshape(-1)
    return hashlib.blake2b(values.numpy().tobytes(), digest_size=16).digest()


def _name(tensor: torch.Tensor) -> str:
    return _NAMES.get(tensor.dtype, _FINE)


def _roundoff(tensor: torch.Tensor) -> float:
    return FORMATS[_name(tensor)].roundoff


def _coarse(module: nn.Module, model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters in a coarser format than the model's are, by name."""
    named = dict(model.named_parameters())
    finest = min((_roundoff(p) for p in named.values()), default=FORMATS[_FINE].roundoff)
    for name, tensor in module.named_parameters():
        known = named.get(name)
        if tensor.is_floating_point() and _roundoff(tensor) > (
            _roundoff(known) if known is not None else finest
        ):
            yield name, tensor


def _rounded(model: nn.Module, coarse: dict[str, torch.Tensor]) -> nn.Module | None:
    """A copy of the model with its numbers in these formats; None where there are none."""
    named = dict(model.named_parameters())
    dtypes = {name: tensor.dtype for name, tensor in coarse.items() if name in named}
    if not dtypes:
        return None
    made = copy.deepcopy(model)
    for name, parameter in made.named_parameters():
        if name in dtypes:
            parameter.data = parameter.data.to(dtypes[name]).to(parameter.dtype)
    return made
