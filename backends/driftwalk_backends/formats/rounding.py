"""How the inputs of a product are rounded while a model runs: to whole numbers, or to fp8."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..tensors import unseen
from .constants import HALF_WAY_PARTS, TIPPING_NOISE

_FP8_MOST = 448.0
_SYMMETRIC = 127


_OTHER_WAY: ContextVar[bool] = ContextVar("half-way to the other number", default=False)


@contextmanager
def half_way_otherwise() -> Iterator[None]:
    """What lies half-way between two whole numbers is rounded to the other one."""
    before = _OTHER_WAY.set(True)
    try:
        yield
    finally:
        _OTHER_WAY.reset(before)


class Rounding(ABC):
    """A module is handed its rounded input by this as a forward pre-hook."""

    @property
    def half_way(self) -> bool:
        """Whether the largest number of all lies half-way between two steps."""
        return False

    def __call__(self, part: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, *rest = args
        with unseen(x):  # what tips over here is noise, and no choice of the model's
            return self.rounded(near(x)), *rest

    @abstractmethod
    def rounded(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True)
class InputRounding(Rounding):
    """So many steps between the least and the greatest input, or on both sides of zero."""

    rows: bool = False
    """Whether each row has a step of its own; otherwise all of the input has one."""
    symmetric: bool = False
    steps: int = 255
    block: int = 0
    """So many numbers of a row have a step of their own; 0: all of it."""
    least: float = 0.0
    """No step is less."""

    @property
    def half_way(self) -> bool:
        return self.symmetric and self.steps % 2 == 1

    def __str__(self) -> str:
        way = "symmetric, " if self.symmetric else ""
        bits = self.steps.bit_length()
        row = f"for {self.block} numbers" if self.block else "a row"
        return f"{way}{bits} bits, one step {row if self.rows else 'for all'}"

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.block and x.shape[-1] != self.block:
            return _block_by_block(x, self.block, self.rounded)
        low, high = (x.amin(-1, True), x.amax(-1, True)) if self.rows else (x.amin(), x.amax())
        low, high = low.clamp(max=0), high.clamp(min=0)
        if self.symmetric:
            step = self._step(torch.maximum(-low, high) / (self.steps / 2))
            return _whole(x / step).clamp(-((self.steps + 1) // 2), self.steps // 2) * step
        step = self._step((high - low) / self.steps)
        zero = (-low / step).round().clamp(0, self.steps)
        return (((x / step).round() + zero).clamp(0, self.steps) - zero) * step

    def _step(self, step: torch.Tensor) -> torch.Tensor:
        return step.clamp(min=self.least) if self.least else _not_zero(step)


@dataclass(frozen=True)
class FixedInputs(Rounding):
    """Whole numbers by a step that is stored, and was found when the model was calibrated."""

    step: float
    zero: float = 0.0
    lowest: int = -128
    highest: int = 127

    def __str__(self) -> str:
        return f"{(self.highest - self.lowest).bit_length()} bits, a fixed step"

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        whole = (x / self.step + self.zero).round().clamp(self.lowest, self.highest)
        return (whole - self.zero) * self.step


@dataclass(frozen=True)
class FloatInputs(Rounding):
    """fp8 (e4m3): its largest number is the largest of a row or block, or the step is stored."""

    fixed: float = 0.0
    """The stored step; 0: that which follows from the input."""
    rows: bool = True
    """Whether each row has a step of its own; otherwise all of the input has one."""
    block: int = 0
    """So many numbers of a row have a step of their own; 0: all of it."""

    def __str__(self) -> str:
        row = f"for {self.block} numbers" if self.block else "a row"
        own = f"one step {row if self.rows else 'for all'}"
        return f"fp8 (e4m3), {'a fixed step' if self.fixed else own}"

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.block and x.shape[-1] != self.block:
            return _block_by_block(x, self.block, self.rounded)
        wide = x if x.dtype == torch.float64 else x.float()
        if self.fixed:
            step = torch.tensor(self.fixed, dtype=wide.dtype)
        else:
            largest = wide.abs().amax(-1, True) if self.rows else wide.abs().amax()
            step = _not_zero(largest / _FP8_MOST)
        taken = (wide / step).clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)
        return (taken.to(wide.dtype) * step).to(x.dtype)


@dataclass(frozen=True)
class OutlierColumns(Rounding):
    """LLM.int8: rows in eight bits, but for columns that have a number beyond the threshold.

    These are taken as they are, in all rows. What is rounded was rounded to fp16 before.
    """

    threshold: float = 0.0
    """0: there are no such columns."""

    def __str__(self) -> str:
        kept = f", columns beyond {self.threshold:g} in float" if self.threshold else ""
        return f"symmetric, 8 bits, one step a row{kept}"

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        half = wide.to(torch.float16).to(wide.dtype)
        beyond = half.abs() >= self.threshold if self.threshold else torch.zeros_like(half) > 0
        within = torch.where(beyond, torch.zeros_like(half), half)
        step = _not_zero(within.abs().amax(-1, True) / _SYMMETRIC)
        columns = beyond.reshape(-1, x.shape[-1]).any(0)
        return torch.where(columns, wide, (within / step).round() * step).to(x.dtype)


def _block_by_block(
    x: torch.Tensor, block: int, rounded: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Each block as a row; a last one that is shorter is filled with zeros."""
    wide = nn.functional.pad(x, (0, -x.shape[-1] % block))
    blocks = wide.reshape(*x.shape[:-1], -1, block)
    return rounded(blocks).flatten(-2)[..., : x.shape[-1]]


def _whole(x: torch.Tensor) -> torch.Tensor:
    """The nearest whole numbers; what lies half-way, or next to it, is rounded to the even one ...

    ... and in the yardstick's dtype to the other one: with as many steps on either side of zero,
    the largest number of a row lies just there, and a kernel may round it either way.
    """
    wide = x if x.dtype == torch.float64 else x.float()  # in fp16 the product would overflow
    near = (wide * HALF_WAY_PARTS).round() / HALF_WAY_PARTS
    whole = near.round()
    if (x.dtype == torch.float64) != _OTHER_WAY.get():
        return whole.to(x.dtype)
    half_way = (near - near.trunc()).abs() == 0.5
    return torch.where(half_way, 2 * near - whole, whole).to(x.dtype)


def _not_zero(step: torch.Tensor) -> torch.Tensor:
    return torch.where(step == 0, torch.ones_like(step), step)


def near(x: torch.Tensor) -> torch.Tensor:
    """In the yardstick's dtype: as close to the edge as another runtime may be."""
    if x.dtype != torch.float32:
        return x
    noise = torch.Generator().manual_seed(x.numel())
    return x * (1 + TIPPING_NOISE * torch.randn(x.shape, generator=noise))
