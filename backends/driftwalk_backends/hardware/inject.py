"""A fault put in on purpose, to test the checker: one bit of one element of one state.

For tests of driftwalk itself, and of what is built on it. `hwcheck` takes one as `inject=`, or from
the variable DRIFTWALK_HWCHECK_INJECT, so that a process elsewhere can be made to compute wrongly:

    state=layer.2,element=5,bit=3,repeat=1

`state`, `case` and `device` are globs; without `repeat` (counted from 0) every repeat is hit, which
is what a device that is always wrong looks like. `probability` (with `seed`) makes it happen now
and then, `core` on one core alone. A report of such a run says so, first of all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from driftwalk.errors import UsageError

from .digest import as_ints

_READ: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("state", "case", "device"), str),
    **dict.fromkeys(("element", "bit", "repeat", "seed", "core"), int),
    "probability": float,
}


@dataclass(frozen=True)
class Injection:
    """Which bit is flipped, and when."""

    state: str = "*"
    element: int = 0
    bit: int = 0
    repeat: int | None = None
    probability: float = 1.0
    seed: int = 0
    case: str = "*"
    device: str = "*"
    core: int | None = None

    @classmethod
    def parse(cls, text: str) -> Injection:
        """Read `state=layer.2,element=5,bit=3,repeat=1`."""
        given: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            key, _, value = part.partition("=")
            if key not in _READ:
                raise UsageError(f"Cannot inject {part!r}: there is no {key!r}.")
            try:
                given[key] = _READ[key](value)
            except ValueError:
                raise UsageError(f"Cannot inject {part!r}: {value!r} is not a number.") from None
        return cls(**given)

    def strikes(self, device: str, case: str, state: str, repeat: int, core: int | None) -> bool:
        """Whether this very tensor is hit."""
        if self.repeat not in (None, repeat) or self.core not in (None, core):
            return False
        named = ((self.device, device), (self.case, case), (self.state, state))
        if not all(fnmatchcase(name, glob) for glob, name in named):
            return False
        if self.probability >= 1:
            return True
        drawn = hashlib.sha256(f"{self.seed}|{device}|{case}|{state}|{repeat}".encode()).digest()
        return int.from_bytes(drawn[:8]) < self.probability * 2**64

    def flipped(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with the one bit flipped; the element and the bit are taken modulo what is there.

        An integer of the element's size is changed, so that a NaN's bits stay what they are.
        """
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        bits = as_ints(copy)  # a view: the copy is contiguous
        size = 8 * tensor.element_size()
        bit, place = self.bit % size, self.element % copy.numel()
        mask = 1 << bit
        if bit == size - 1 and size > 8:  # the sign, as a number that fits the signed integer
            mask -= 1 << size
        bits[place] ^= mask
        return copy
