"""A copy of a model in another dtype, made the way transformers itself would load it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from .tensors import TORCH_DTYPES


def converted(
    module: nn.Module, dtype: str, device: str, attn: str | None = None, experts: str | None = None
) -> nn.Module:
    """A deep copy on `device` in `dtype`; the original is left alone."""
    twin = copy.deepcopy(module)
    if attn is not None:
        twin.set_attn_implementation(attn)  # type: ignore[operator]
    if dtype == "fp64":
        experts = experts or "eager"  # grouped matrix products have no float64 kernel
    if experts is not None and has_experts(twin):
        twin.set_experts_implementation(experts)  # type: ignore[operator]
    wanted = TORCH_DTYPES[dtype]
    if dtype in ("fp16", "bf16") and hasattr(twin, "config"):
        _cast_like_from_pretrained(twin, wanted)
        return twin.to(device)
    return twin.to(device=device, dtype=wanted)


def has_experts(module: nn.Module) -> bool:
    """Whether this is a mixture of experts whose implementation transformers can switch."""
    named = any("experts" in path.split(".") for path, _ in module.named_modules())
    return named and hasattr(module, "set_experts_implementation")


def is_in(module: nn.Module, dtype: str, device: str) -> bool:
    """Whether every float parameter is already in this dtype on this device."""
    wanted, place = TORCH_DTYPES[dtype], torch.device(device)
    floats = [p for p in module.parameters() if p.is_floating_point()]
    return all(p.dtype == wanted and p.device.type == place.type for p in floats) and (
        place.index is None or all(p.device.index == place.index for p in floats)
    )


def _cast_like_from_pretrained(module: nn.Module, wanted: torch.dtype) -> None:
    """Cast parameters and persistent buffers; keep what transformers keeps in float32.

    Non-persistent buffers (rotary frequencies) are computed in float32 when transformers loads a
    half-precision model. Rounding them here would make an error no deployment has.
    """
    for _, tensor, fits in castable(module):
        if fits(wanted):
            tensor.data = tensor.data.to(wanted)


def castable(
    module: nn.Module,
) -> Iterator[tuple[str, torch.Tensor, Callable[[torch.dtype], bool]]]:
    """The float parameters and buffers that a copy in another dtype casts, and whether to which."""
    strict = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    kept = strict | set(getattr(module, "_keep_in_fp32_modules", None) or ())
    plain = not hasattr(module, "config")
    persistent = set(module.state_dict(keep_vars=True))

    def fits(name: str) -> Callable[[torch.dtype], bool]:
        halves = {torch.float16: not _named(name, kept), torch.bfloat16: not _named(name, strict)}
        return lambda dtype: halves.get(dtype, True)

    for name, parameter in module.named_parameters():
        if parameter.is_floating_point():
            yield name, parameter, fits(name)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and (plain or name in persistent):
            yield name, buffer, fits(name)


def _named(path: str, keep: Iterable[str]) -> bool:
    return not set(path.split(".")).isdisjoint(keep)
