"""The stored weights of a module that somebody quantised: torchao's tensors, torch.ao's modules.

Those of bitsandbytes and compressed-tensors: `in_libraries`; those that a folder packs: `folders`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Float64

from .constants import INPUT_ROUNDING_ROWS
from .in_libraries import (
    ROUNDOFFS,
    UnknownFormatError,
    of_bitsandbytes,
    of_compressed_tensors,
    of_llm_int8,
    wide,
)
from .rounded import Grid, RoundedWeight, grid_of
from .rounding import InputRounding

_TRIED = (255, 127)
"""Steps of an input that PyTorch's own kernels take: all eight bits, or seven where sums of two
products must fit into 16 bits."""


def stored_in(module: nn.Module) -> list[RoundedWeight]:
    """Every quantised weight of a module; an error where there is one that cannot be read."""
    before = max((ROUNDOFFS.get(one.dtype, 0.0) for one in module.parameters()), default=0.0)
    return [one for path, part in module.named_modules() for one in _of(path, part, before)]


def _of(path: str, part: nn.Module, before: float) -> Iterator[RoundedWeight]:
    """`before`: what weights may be off since they were in the model's dtype once."""
    weight = part._parameters.get("weight")
    if isinstance(stored := getattr(part, "stored_weight", None), RoundedWeight):
        yield stored  # read from a folder (folders/loading.py)
        return
    if weight is not None and hasattr(weight, "qdata"):
        yield _of_torchao(path, weight)
        return
    packed = getattr(type(part), "weight", None)
    if packed is not None and type(part).__module__.startswith("torch.ao.nn.quantized"):
        yield _of_torch_ao(path, part)
        return
    if type(weight).__name__ == "Int8Params":
        yield of_llm_int8(path, part, before)
        return
    if weight is not None and hasattr(weight, "quant_state"):
        yield of_bitsandbytes(path, weight)
        return
    if getattr(getattr(part, "quantization_scheme", None), "weights", None) is not None:
        yield of_compressed_tensors(path, part)
        return
    for name, own in part._parameters.items():
        if own is not None and type(own.data) is not torch.Tensor:
            raise UnknownFormatError(f"{path}.{name} is a {type(own.data).__name__}")


def _of_torchao(path: str, weight: Any) -> RoundedWeight:
    numbers = weight.qdata
    if tuple(numbers.shape) != tuple(weight.shape):
        raise UnknownFormatError(f"{path}.weight is packed ({type(weight).__name__})")
    if getattr(weight, "act_pre_scale", None) is not None:
        raise UnknownFormatError(f"the inputs of {path} are scaled before they are rounded")
    block = tuple(min(b, n) for b, n in zip(weight.block_size, numbers.shape, strict=True))
    counts = tuple(n // b for n, b in zip(numbers.shape, block, strict=True))
    zero = getattr(weight, "zero_point", None)
    return RoundedWeight(
        path,
        _grid(path, weight),
        wide(numbers),
        wide(weight.scale).reshape(counts),
        np.zeros(counts) if zero is None else wide(zero).reshape(counts),
        block,
        _inputs_of_torchao(path, weight),
        # The weight was rounded, and, where the scale is coarse, 1 / scale and the product.
        ROUNDOFFS.get(weight.dtype, 0.0) + 2 * ROUNDOFFS.get(weight.scale.dtype, 0.0),
    )


def _grid(path: str, weight: Any) -> Grid:
    return _known(path, getattr(weight, "target_dtype", weight.qdata.dtype))


def _known(path: str, dtype: torch.dtype) -> Grid:
    word = str(dtype).removeprefix("torch.")
    found = grid_of(word)
    if found is None:
        raise UnknownFormatError(f"{path}.weight holds {word}")
    return found


def _inputs_of_torchao(path: str, weight: Any) -> InputRounding | None:
    asked = getattr(weight, "act_quant_kwargs", None)
    word = getattr(weight, "activation_quantization", None)
    if asked is None and word is None:
        return None
    if str(getattr(word, "value", word)).lower().endswith("int8_asym_per_token"):
        return InputRounding(rows=True)
    static = getattr(weight, "act_quant_scale", None) is not None
    whole = type(asked).__name__ == "QuantizeTensorToInt8Kwargs"
    if asked is None or not whole or static or getattr(asked, "reduce_range", False):
        raise UnknownFormatError(f"the inputs of {path} are rounded as {asked or word}")
    rows = type(asked.granularity).__name__ in ("PerRow", "PerToken")
    return InputRounding(rows, symmetric=asked.mapping_type.name == "SYMMETRIC")


def _of_torch_ao(path: str, part: Any) -> RoundedWeight:
    weight = part.weight()
    if not weight.is_quantized or weight.dtype not in (torch.qint8, torch.quint8):
        raise UnknownFormatError(f"{path} stores {weight.dtype}")
    numbers = weight.int_repr()
    if weight.qscheme() == torch.per_tensor_affine:
        step, zero = np.array(weight.q_scale()), np.array(float(weight.q_zero_point()))
        block = tuple(numbers.shape)
    else:
        axis = weight.q_per_channel_axis()
        step, zero = wide(weight.q_per_channel_scales()), wide(weight.q_per_channel_zero_points())
        block = tuple(1 if i == axis else n for i, n in enumerate(numbers.shape))
    counts = tuple(n // b for n, b in zip(numbers.shape, block, strict=True))
    product = "dynamic" in type(part).__module__ and numbers.ndim == 2
    if not product and "embedding" not in type(part).__name__.lower():
        raise UnknownFormatError(f"{path} is a {type(part).__name__}, with steps of its own")
    return RoundedWeight(
        path,
        _known(path, numbers.dtype),
        wide(numbers),
        step.reshape(counts),
        zero.reshape(counts),
        block,
        _seen_to_round(part, wide(weight.dequantize())) if product else None,
    )


def _seen_to_round(part: Any, values: Float64) -> InputRounding:
    """Which of two ways this machine's kernel rounds inputs: the one that explains a product."""
    given = torch.randn(
        INPUT_ROUNDING_ROWS, values.shape[1], generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        made, bias = part(given).double(), part.bias()

    def off(way: InputRounding) -> float:
        product = way.rounded(given).double() @ torch.from_numpy(values).T
        return float((made - product - (0 if bias is None else bias.double())).norm())

    return min((InputRounding(steps=steps) for steps in _TRIED), key=off)
