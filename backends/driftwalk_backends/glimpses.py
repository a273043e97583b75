"""What a module gave in a run, remembered for a comparison after it, without a copy of it.

A tensor may be written to after it was seen, and one that nobody needs any more is gone. So its
version is noted, and a few of its numbers are: those tell most tensors apart. What they leave open
takes another run to decide, in which states are copied (crosscheck.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from .tensors import same_values, some_numbers


class Glimpse:
    """A tensor as it was at one time of a run."""

    __slots__ = ("_numbers", "_reference", "_version", "dtype", "shape")

    def __init__(self, tensor: torch.Tensor, keep: bool = False, sample: bool = True) -> None:
        """`keep`: the tensor stays in memory; `sample`: a few of its numbers are noted if not."""
        self._reference: Callable[[], torch.Tensor | None] = (
            _Kept(tensor) if keep else weakref.ref(tensor)
        )
        self._version = _version(tensor)
        self._numbers = some_numbers(tensor) if sample and not keep else None
        self.shape = tensor.shape
        self.dtype = tensor.dtype

    @property
    def object(self) -> torch.Tensor | None:
        """The tensor itself, whatever it holds by now; None where it is gone."""
        return self._reference()

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, if it still holds what it held then."""
        tensor = self._reference()
        if tensor is None or self._version is None or _version(tensor) != self._version:
            return None
        return tensor

    def may_be(self, other: torch.Tensor) -> bool:
        """Whether a tensor may hold the numbers that this one held; only a no is certain."""
        if self.shape != other.shape:
            return False
        mine, its = self._numbers, some_numbers(other)
        return mine is None or its is None or same_values(mine, its)


class _Kept:
    __slots__ = ("_tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self._tensor


def _version(tensor: torch.Tensor) -> int | None:
    """How often the tensor was written to; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version
