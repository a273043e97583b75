"""Which faults of quantised models are above the noise, told by the bits or by the layer alone.

A fault in what is stored is owed where some number is more than half a step from its weight: what
is nearer is what rounding to the nearest gives, and an honest quantiser that chose this step would
have stored the same. A fault of the kernel is owed where its layer, given the same input, is off by
more than ABOVE times what an honest layer may be, at the median token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

HALF = 0.501
"""In steps: as far as rounding to the nearest leaves a number from its weight, and a tie."""
ABOVE = 4.0
_ROUNDOFFS = 2.0**-20
"""What honest inputs differ by: a number that lies half-way to the next step goes either way."""
_DRAWS = 8


def farthest(numbers: Any, weight: Any, step: Any, zero: Any, ends: tuple[float, float]) -> float:
    """In steps: how far a stored number is from its weight, at most.

    A number at an end of its range stands for all weights beyond it.
    """
    off = weight / step + zero - numbers
    beyond = (numbers >= ends[1]) & (off > 0) | (numbers <= ends[0]) & (off < 0)
    return float(np.where(beyond, 0.0, np.abs(off)).max())


def in_torchao(stored: Any, weight: torch.Tensor) -> float:
    """How far a tensor of torchao's is from the weight that it was made of, in steps."""
    own = weight.detach().double().numpy()
    numbers = stored.qdata.double().numpy()
    step, zero = (_spread(getattr(stored, n, None), stored) for n in ("scale", "zero_point"))
    if stored.qdata.dtype == torch.float8_e4m3fn:
        places = np.exp2(np.floor(np.log2(np.maximum(np.abs(numbers), 2.0**-6))) - 3)
        return farthest(numbers / places, own / places, step, 0.0, (-448 / 32, 448 / 32))
    half = 8 if getattr(stored, "target_dtype", None) == torch.int4 else 128
    return farthest(numbers, own, step, zero, (-half, half - 1))


def _spread(values: torch.Tensor | None, stored: Any) -> Any:
    """One for each number, of one for each block."""
    if values is None:
        return 0.0
    made = values.double()
    for axis, size in enumerate(stored.qdata.shape):
        made = made.repeat_interleave(size // made.shape[axis], axis)
    return made.numpy()


def input_of(model: nn.Module, path: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a layer is given where the model is given numbers drawn by chance."""
    draw, seen = torch.Generator().manual_seed(0), []
    part = model.get_submodule(path)
    hook = part.register_forward_pre_hook(lambda part, args: seen.append(args[0].clone()))
    config: Any = model.config
    with torch.no_grad():
        if hasattr(config, "vocab_size"):
            model(torch.randint(0, config.vocab_size, (2, 16), generator=draw))
        else:
            sizes = 2, config.num_channels, config.image_size, config.image_size
            model(pixel_values=torch.randn(*sizes, generator=draw).to(dtype))
    hook.remove()
    return seen[0]


def times_honest(clean: nn.Module, wrong: nn.Module, x: torch.Tensor) -> float:
    """By how many times what honest inputs differ by, and what tips over with them, changes it."""
    draw = torch.Generator().manual_seed(0)

    def nudged() -> torch.Tensor:
        return x * (1 + _ROUNDOFFS * torch.randn(x.shape, generator=draw))

    with torch.no_grad():
        right = clean(x)
        honest = torch.stack([(clean(nudged()) - right).norm(dim=-1) for _ in range(_DRAWS)])
        off = (wrong(x) - right).norm(dim=-1).median()
    return float(off / honest.amax(0).median().clamp(min=torch.finfo(x.dtype).tiny))
