"""Torch tensors in calls and outputs: finding them, naming them, copying them to numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from driftwalk.dtypes import FORMATS, Array

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def stream_slot(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str | None:
    """Where a block takes the residual stream: a position, a keyword, or None if nowhere."""
    for number, value in enumerate(args):
        if is_float(value):
            return number
    if is_float(kwargs.get("hidden_states")):
        return "hidden_states"
    return next((name for name, value in kwargs.items() if is_float(value)), None)


def stream_input(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    slot = stream_slot(args, kwargs)
    if slot is None:
        return None
    found = args[slot] if isinstance(slot, int) else kwargs[slot]
    assert isinstance(found, torch.Tensor)
    return found


def with_stream_input(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], tensor: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another tensor on the residual stream."""
    slot = stream_slot(args, kwargs)
    if isinstance(slot, int):
        return (*args[:slot], tensor, *args[slot + 1 :]), dict(kwargs)
    return args, {**kwargs, str(slot): tensor}


def with_stream_output(output: Any, tensor: torch.Tensor) -> Any:
    """The same output with another first float tensor."""
    if isinstance(output, torch.Tensor):
        return tensor
    if isinstance(output, Mapping):
        first = next(name for name, item in output.items() if is_float(item))
        return type(output)(**{**output, first: tensor})
    first = next(number for number, item in enumerate(output) if is_float(item))
    return type(output)([*output[:first], tensor, *output[first + 1 :]])


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Every float tensor a block gave, in order; nested caches are not states."""
    if is_float(output):
        return [output]
    if isinstance(output, tuple | list):
        return [item for item in output if is_float(item)]
    if isinstance(output, Mapping):
        return [item for item in output.values() if is_float(item)]
    return []


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
