"""Memory for numbers that one operation reads, used again by the next.

A CPU takes several times as long to get fresh memory, page by page, as to cast a weight into memory
that it has.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import local
from typing import Any

import torch

from .op_values import leaves_of

MOST = 2**30
"""Bytes that are kept; what is larger gets memory of its own."""

LEAST = 2**18
"""Elements below which memory of its own costs nothing."""

_LINE = 64
"""Bytes that the first number of a tensor lies at a multiple of."""


class _Scratch(local):
    """What one thread has, and how much of it is in use."""

    def __init__(self) -> None:
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.taken = 0


_scratch = _Scratch()


def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor.to(dtype)` for an operation that `run` runs."""
    size = tensor.numel() * dtype.itemsize
    large = tensor.dtype != dtype and tensor.numel() >= LEAST and size <= MOST
    if not large or not _is_plain(tensor):
        return tensor.to(dtype)
    start = -(-_scratch.taken // _LINE) * _LINE
    if start + size > len(_scratch.memory):
        # Whoever has some of the old memory keeps it.
        _scratch.memory, start = torch.empty(max(size, 2 * start), dtype=torch.uint8), 0
    _scratch.taken = start + size
    place = _scratch.memory[start : start + size].view(dtype)
    return place.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def run(operation: Callable[[], Any]) -> Any:
    """What an operation gives; the memory of the numbers that were cast for it is free again."""
    memory, taken = _scratch.memory, _scratch.taken
    try:
        given = operation()
        if _scratch.taken != taken or _scratch.memory is not memory:
            start = _address(_scratch.memory)
            if any(_address(leaf) == start for leaf in leaves_of(given)):
                _scratch.memory = torch.empty(0, dtype=torch.uint8)  # it gave what it was given
        return given
    finally:
        _scratch.taken = taken if _scratch.memory is memory else 0


def free() -> None:
    """Let go of all that this thread keeps."""
    _scratch.memory, _scratch.taken = torch.empty(0, dtype=torch.uint8), 0


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers fill a piece of the CPU's memory, by rows or by columns."""
    if tensor.device.type != "cpu" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return tensor.is_contiguous() or (tensor.ndim == 2 and tensor.t().is_contiguous())


def _address(value: Any) -> int | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return value.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a tensor without memory
        return None
