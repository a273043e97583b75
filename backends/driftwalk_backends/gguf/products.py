"""What llama.cpp makes of a product's input before it multiplies, by the type of the weight.

    F16, BF16            the input in that format
    Q8_0, Q4_0, Q5_0     whole numbers, -127 to 127, with a step for 32 of them, in half precision
    Q4_1, Q5_1           the same; for the weights' minimum the block's sum, in half precision too
    Q4_K, Q6_K, IQ...    whole numbers, -127 to 127, with a step for 256 of them, in float32

On ARM CPUs that can, products of F16 weights are summed in half precision: an error of many times
what their rounding makes. The yardstick has as much of it, by chance; the truth has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..formats.constants import GGUF_HALF_SUM_NOISE
from ..formats.rounding import near
from ..tensors import unseen

_BY_32 = ("Q8_0", "Q4_0", "Q5_0", "IQ4_NL", "MXFP4")
_WITH_SUMS = ("Q4_1", "Q5_1")
_BY_256 = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"),
)
_PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}
_MOST = 127
LANES = 8
"""Sums in half precision that a product is made of, at the same time."""


@dataclass(frozen=True)
class ProductInput:
    """How an input is rounded for a product with weights of one type."""

    kind: str
    """The type of the weights."""
    half_sums: bool = False

    @property
    def block(self) -> int:
        return 256 if self.kind in _BY_256 else 32

    @property
    def tips_often(self) -> bool:
        """Whether most tokens of a product are off by more than float32 is."""
        return self.half_sums and self.kind == "F16"

    def __str__(self) -> str:
        if self.kind in _PLAIN:
            return self.kind.lower()
        step = "fp32" if self.kind in _BY_256 else "fp16"
        return f"8 bits, one step ({step}) for {self.block} numbers"

    def rounded(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The input as it is multiplied; and of each block by how much its sum is another."""
        if self.kind in _PLAIN:
            return x.to(_PLAIN[self.kind]).to(x.dtype), None
        blocks = x.reshape(*x.shape[:-1], -1, self.block)
        step = blocks.abs().amax(-1, keepdim=True) / _MOST
        numbers = (blocks / torch.where(step == 0, torch.ones_like(step), step)).round()
        kept = step if self.kind in _BY_256 else half(step)
        made = (numbers * kept).reshape(x.shape)
        if self.kind not in _WITH_SUMS:
            return made, None
        sums = numbers.sum(-1, keepdim=True)
        return made, (half(step * sums) - kept * sums).squeeze(-1)


def input_for(kind: str, half_sums: bool) -> ProductInput | None:
    """The rounding for a type of weights; None where there is none, or none is known."""
    known = (*_BY_32, *_WITH_SUMS, *_BY_256, *_PLAIN)
    return ProductInput(kind, half_sums) if kind in known else None


class RoundedProduct(nn.Linear):
    """A linear layer whose input is rounded as llama.cpp does."""

    def __init__(
        self, like: nn.Linear, given: ProductInput, minimums: torch.Tensor | None = None
    ) -> None:
        """`minimums`: for weights that have one for each block, by row and block."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        self.weight, self.bias = like.weight, like.bias
        self.given = given
        self.register_buffer("minimums", minimums)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with unseen(input):  # what tips over here is noise, and no choice of the model's
            x, apart = self.given.rounded(near(input))
        made = functional.linear(x, self.weight, self.bias)
        minimums: Any = self.minimums
        if apart is not None and minimums is not None:
            made = made + functional.linear(apart, minimums.to(apart.dtype))
        if self.given.tips_often and x.dtype == torch.float32:
            with unseen(made):
                made = made + self._of_half_sums(x)
        return made

    def _of_half_sums(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.weight.detach().float().square()
        return half_sum_noise(x, lambda squares: functional.linear(squares, weights))


def half_sum_noise(
    x: torch.Tensor, product: Callable[[torch.Tensor], torch.Tensor], lanes: int = LANES
) -> torch.Tensor:
    """As large as the error of a product summed in half precision: by chance, each time the same.

    `product` multiplies squares with the squares of the other factor. A number is rounded again
    with each one that is added to its sum after it.
    """
    width = x.shape[-1]
    after = math.ceil(width / lanes) - torch.arange(width, device=x.device) // lanes
    squares = product(x.square() * after)
    chance = torch.Generator().manual_seed(x.numel())
    drawn = torch.randn(squares.shape, generator=chance).to(x.device)
    return GGUF_HALF_SUM_NOISE * squares.sqrt() * drawn


def half(x: torch.Tensor) -> torch.Tensor:
    """Rounded to half precision, in its own dtype."""
    return x.to(torch.float16).to(x.dtype)
