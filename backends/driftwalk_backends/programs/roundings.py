"""Operations of a program that round: `quantize_per_tensor` and its kin, and what they declare.

In float they give whole numbers as floats, at the precision of what they are given: so that a
program in float64 rounds where it says so, and computes all else in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..formats.in_libraries import UnknownFormatError
from ..formats.rounding import near
from ..tensors import unseen

ROUNDS, READS, CHOOSES = "rounds", "reads", "chooses"
_PACKAGES = ("quantized_decomposed", "torchao")
_KNOWN = {
    "quantize_per_tensor": ROUNDS,
    "quantize_per_channel": ROUNDS,
    "quantize_per_token": ROUNDS,
    "dequantize_per_tensor": READS,
    "dequantize_per_channel": READS,
    "dequantize_per_token": READS,
    "choose_qparams": CHOOSES,
    "choose_qparams_symmetric": CHOOSES,
    "choose_qparams_per_token_asymmetric": CHOOSES,
}


def kind_of(target: Any) -> str:
    """How an operation rounds; empty where it does not, an error where that is not known."""
    if getattr(target, "namespace", "") not in _PACKAGES:
        return ""
    name = word_of(target)
    if name not in _KNOWN:
        raise UnknownFormatError(f"its graph calls {name}")
    return _KNOWN[name]


def word_of(target: Any) -> str:
    """The operation's name, without its package and its overload."""
    return str(target._schema.name).rpartition("::")[2]


def bound(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name."""
    names = [argument.name for argument in target._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def in_float(target: Any, args: Any, kwargs: Any, dtype: torch.dtype) -> Any:
    """What it gives, as floats; of whole numbers that are stored, in this dtype."""
    given = bound(target, args, kwargs)
    x = given["input"]
    x = x if x.is_floating_point() else x.to(dtype)
    with unseen(x):
        return _IN_FLOAT[kind_of(target)](word_of(target), given, x)


def _rounded(word: str, given: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    step, zero = _per_axis(word, given, x)
    whole: torch.Tensor = (near(x) / step).round() + zero
    return whole.clamp(given["quant_min"], given["quant_max"])


def _read(word: str, given: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    step, zero = _per_axis(word, given, x)
    values: torch.Tensor = (x - zero) * step
    return values


def _chosen(word: str, given: dict[str, Any], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = "per_token" in word
    low, high = (x.amin(-1, True), x.amax(-1, True)) if tokens else (x.amin(), x.amax())
    low, high = low.clamp(max=0), high.clamp(min=0)
    lowest, highest = given.get("quant_min", -128), given.get("quant_max", 127)
    least = float(given.get("eps", torch.finfo(torch.float32).eps))
    if "symmetric" in word and not tokens:
        step = (torch.maximum(-low, high) / ((highest - lowest) / 2)).clamp(min=least)
        middle = 0 if lowest < 0 else (lowest + highest + 1) // 2
        return step, torch.full_like(step, middle)
    step = ((high - low) / (highest - lowest)).clamp(min=least)
    if not tokens:
        return step, (lowest - (low / step).round()).clamp(lowest, highest)
    from_low, from_high = lowest - low / step, highest - high / step
    wider = (lowest + low / step) + (highest + high / step) > 0
    return step, torch.where(wider, from_low, from_high).round().clamp(lowest, highest)


_IN_FLOAT: dict[str, Callable[[str, dict[str, Any], torch.Tensor], Any]] = {
    ROUNDS: _rounded,
    READS: _read,
    CHOOSES: _chosen,
}


def _per_axis(word: str, given: dict[str, Any], x: torch.Tensor) -> tuple[Any, Any]:
    """Step and zero, as they meet the numbers."""
    step = given["scales"] if "scales" in given else given["scale"]
    zero = given["zero_points"] if "zero_points" in given else given["zero_point"]
    zero = 0 if zero is None else zero

    def met(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = value.to(x.dtype)
        if "per_channel" not in word or made.ndim != 1:
            return made
        return made.reshape([-1 if i == given["axis"] % x.ndim else 1 for i in range(x.ndim)])

    return met(step), met(zero)
