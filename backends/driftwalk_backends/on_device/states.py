"""States left on their device, and their sums formed there.

Triton kernels (batching.py) do it where they can; else plain tensor operations (eager.py).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch

from driftwalk.dtypes import Array
from driftwalk.measure.reduction import Reducing
from driftwalk.states import Held
from driftwalk.tolerance import Tolerance

from ..tensors import TORCH_DTYPES, as_rows, to_numpy
from .eager import eager

SHARE = 0.25
"""How much of a device's free memory the states of one run may take."""

KNOWN = (torch.float16, torch.bfloat16, torch.float32)
"""Formats whose squares float64 can hold; float64 itself is left to the host."""

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class HeldTensor:
    """A tensor of ours, on its device, and the squares of its rows, if they are known."""

    def __init__(self, tensor: torch.Tensor, squares: torch.Tensor | None = None) -> None:
        self.tensor = tensor.contiguous()
        self.kind, self.device = tensor.dtype, tensor.device
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self.dtype = _NAMES[tensor.dtype]
        self.rows = math.prod(self.shape[:-1][:2])
        self.width = tensor.numel() // max(1, self.rows)
        self.address: int = self.tensor.data_ptr()
        self._squares = squares

    @property
    def squares(self) -> torch.Tensor:
        if self._squares is None:
            self._squares = as_rows(self.tensor).double().square().sum(1)
        return self._squares

    def fetch(self) -> Array:
        return to_numpy(self.tensor)

    def reduce(self, reference: Held, tolerance: Tolerance, rows: Array) -> Reducing | None:
        """Begin on the device's own queue; the numbers are waited for when they are asked for."""
        if not isinstance(reference, HeldTensor):
            return None
        fits = reference.shape == self.shape and reference.device == self.device
        known = reference.kind in KNOWN and self.kind in KNOWN
        if not (fits and known and self.rows and self.width):
            return None
        chosen = None if len(rows) == self.rows else rows
        kernels = _kernels(self.device)
        if kernels is not None:
            begun: Reducing | None = kernels.fused(reference, self, tolerance, chosen)
            if begun is not None:
                return begun
        return eager(as_rows(reference.tensor), as_rows(self.tensor), tolerance, chosen)


class Holding:
    """Keeps states on a device while there is room, and copies the others to the host."""

    def __init__(self, device: torch.device) -> None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf
        self._left = free * SHARE

    def keep(self, tensor: torch.Tensor) -> HeldTensor | None:
        """A copy on the device; None where it would take more than its share."""
        self._left -= tensor.nbytes
        if self._left < 0 or tensor.dtype not in _NAMES:
            return None
        known = tensor.dtype in KNOWN and tensor.numel()
        kernels = _kernels(tensor.device) if known else None
        if kernels is not None:
            return HeldTensor(*kernels.copied(tensor.detach()))
        return HeldTensor(tensor.detach().clone(memory_format=torch.contiguous_format))


@cache
def _kernels(device: torch.device) -> Any:
    """The module that launches kernels, where there are some for this device.

    Triton may be missing, and needs a C compiler: try, and do without.
    """
    if device.type != "cuda":
        return None
    try:
        from . import batching

        some = HeldTensor(*batching.copied(torch.ones((2, 16), dtype=KNOWN[0], device=device)))
        # The second launch takes a shorter way than the first.
        begun = [batching.fused(some, some, Tolerance(1.0), None) for _ in range(2)]
        works = all(wait is not None and wait() is not None for wait in begun)
    except Exception:  # whatever a compiler raises
        return None
    return batching if works else None
