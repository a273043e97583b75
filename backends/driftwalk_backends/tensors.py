"""Torch tensors in calls and outputs: finding them, naming them, copying them to numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any, cast

import numpy as np
import torch

from driftwalk.dtypes import FORMATS, Array

from .slots import Slot, call_tensors, from_call, members, put, tensors_in, with_call

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def stream_slot(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], known: Slot | None = None
) -> Slot | None:
    """Where a block takes the residual stream, by its place in the call; None if nowhere.

    That is where it is known to, if a float tensor stands there; else where the first one does.
    """
    if known and is_float(from_call(args, kwargs, known)):
        return known
    positions = ((number,) for number, value in enumerate(args) if is_float(value))
    names = ((name,) for name in ("hidden_states", *kwargs) if is_float(kwargs.get(name)))
    nested = (slot for slot, item in call_tensors(args, kwargs) if is_float(item))
    return next(chain[Slot](positions, names, nested), None)


def stream_input(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], slot: Slot | None = None
) -> torch.Tensor | None:
    """The residual stream of a call."""
    slot = stream_slot(args, kwargs, slot)
    return None if slot is None else cast("torch.Tensor", from_call(args, kwargs, slot))


def with_stream_input(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tensor: torch.Tensor,
    slot: Slot | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another tensor on the residual stream."""
    slot = stream_slot(args, kwargs, slot)
    assert slot is not None
    return with_call(args, kwargs, slot, tensor)


def with_stream_output(output: Any, tensor: torch.Tensor, slot: Slot | None = None) -> Any:
    """The same output with another tensor on the residual stream: the first float one."""
    slots = [found for found, _ in float_outputs(output)]
    return put(output, slot if slot is not None and slot in slots else slots[0], tensor)


def float_outputs(output: Any) -> list[tuple[Slot, torch.Tensor]]:
    """Every float tensor a block gave, in order, by its slot; nested caches are not states."""
    if is_float(output):
        return [((), output)]
    found = [((key,), item) for key, item in members(output) if is_float(item)]
    return found or [(slot, item) for slot, item in tensors_in(output) if is_float(item)]


def output_tensors(output: Any, slot: Slot | None = None) -> list[torch.Tensor]:
    """Every float tensor a block gave, in order; the one in the slot comes first."""
    found = dict(float_outputs(output))
    first = [found.pop(slot)] if slot is not None and slot in found else []
    return [*first, *found.values()]


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same numbers, NaN where NaN is; one may have been cast from the other."""
    if a.shape != b.shape or a.device != b.device:
        return False
    if a.dtype != b.dtype:
        if not (a.is_floating_point() and b.is_floating_point()):
            return False
        coarser = max(a.dtype, b.dtype, key=lambda dtype: torch.finfo(dtype).eps)
        a, b = a.to(coarser), b.to(coarser)
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def to_numpy(tensor: torch.Tensor) -> Array:
    """A copy on the host, in the same format; numpy has no bfloat16 of its own."""
    # On the CPU only clone() copies; from a device the transfer itself is the copy.
    host = tensor.detach().clone() if tensor.device.type == "cpu" else tensor.detach().cpu()
    host = host.contiguous()
    if host.dtype == torch.bfloat16:
        return host.view(torch.int16).numpy().view(FORMATS["bf16"].dtype)
    if host.dtype == torch.float8_e4m3fn:
        return host.view(torch.uint8).numpy().view(FORMATS["fp8"].dtype)
    if host.is_floating_point() and host.itemsize == 1:  # kinds of fp8 that fp16 holds exactly
        host = host.to(torch.float16)
    array: Array = host.numpy()
    return array


def from_numpy(array: Array, device: torch.device | str = "cpu") -> torch.Tensor:
    """A fresh tensor; probes are read-only and torch must not write to them."""
    if array.dtype == FORMATS["bf16"].dtype:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """(B, T, ...) as B*T rows; (B, C) as B rows; anything smaller as one row."""
    return tensor.reshape(math.prod(tensor.shape[:-1][:2]), -1)
