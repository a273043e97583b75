"""A copy of a model in another dtype, made the way transformers itself would load it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import nn

from .copies import copied, plain_tensors
from .tensors import TORCH_DTYPES


@torch.inference_mode(False)
def converted(
    module: nn.Module, dtype: str, device: str, attn: str | None = None, experts: str | None = None
) -> nn.Module:
    """A deep copy on `device` in `dtype`; the original is left alone."""
    twin = copied(module)
    if attn is not None:
        twin.set_attn_implementation(attn)  # type: ignore[operator]
    if dtype == "fp64":
        experts = experts or "eager"  # grouped matrix products have no float64 kernel
    if experts is not None and has_experts(twin):
        twin.set_experts_implementation(experts)  # type: ignore[operator]
    wanted = TORCH_DTYPES[dtype]
    if dtype in ("fp16", "bf16") and hasattr(twin, "config"):
        _cast_like_from_pretrained(twin, wanted)
        twin.to(device)
    elif getattr(twin, "is_quantized", False):
        twin.to(device=device, dtype=wanted)  # transformers refuses by name what cannot be cast
    else:
        twin.to(device)
        twin._apply(  # type: ignore[no-untyped-call]
            lambda tensor: tensor.to(_format(tensor.dtype, wanted))
        )
    plain_tensors(twin, lambda tensor: _carried(tensor, wanted, device))
    return twin


def _format(dtype: torch.dtype, wanted: torch.dtype) -> torch.dtype:
    """What `.to(wanted)` should make of a tensor; it drops the imaginary part of complex ones.

    There is no complex half that computes: a half-precision model keeps complex64.
    """
    if dtype.is_complex:
        return torch.complex128 if wanted is torch.float64 else torch.complex64
    return wanted if dtype.is_floating_point else dtype


def _carried(tensor: torch.Tensor, wanted: torch.dtype, device: str) -> torch.Tensor:
    """A plain attribute: widened with the model, which is exact; rounded it would not be by
    `.half()`, so that it is not rounded here."""
    dtype = _format(tensor.dtype, wanted)
    wider = dtype.itemsize > tensor.dtype.itemsize
    with torch.no_grad():
        return tensor.to(device, dtype if wider else tensor.dtype)


def has_experts(module: nn.Module) -> bool:
    """Whether this is a mixture of experts whose implementation transformers can switch."""
    named = any("experts" in path.split(".") for path, _ in module.named_modules())
    return named and hasattr(module, "set_experts_implementation")


def is_in(module: nn.Module, dtype: str, device: str) -> bool:
    """Whether every float parameter is already in this dtype on this device."""
    wanted, place = TORCH_DTYPES[dtype], torch.device(device)
    if dtype == "fp64" and any(
        t.dtype != _format(t.dtype, wanted) for t in (*module.parameters(), *module.buffers())
    ):
        return False
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
