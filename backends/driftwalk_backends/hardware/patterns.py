"""Inputs with bit patterns that are known to find weak cells and lanes, made on the device itself.

All from integers, so that every device makes the same bits: `random` values in [-1, 1), mantissas
that are a `checkerboard` or a `walking` one with exponents near 1, and `denormals`. All are finite,
and small enough that sums of their products are finite in every dtype.
"""

from __future__ import annotations

import torch

from .digest import mixed

PATTERNS = ("random", "checkerboard", "walking", "denormals")

# Of each format: bits of the mantissa, and the bits of 1.0.
_SHAPES: dict[torch.dtype, tuple[int, int]] = {
    torch.float64: (52, 0x3FF0000000000000),
    torch.float32: (23, 0x3F800000),
    torch.float16: (10, 0x3C00),
    torch.bfloat16: (7, 0x3F80),
    torch.float8_e4m3fn: (3, 0x38),
}
_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHECKER = 0x5555555555555555


def values(
    pattern: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """A tensor of floats; the same bits on every device."""
    count = 1
    for extent in shape:
        count *= extent
    words = mixed(count, seed, device)
    if pattern == "random":
        # 12 bits are exact in every format but fp8 and bf16, where all devices round alike.
        whole = ((words >> 20) & 0xFFF) - 0x800
        return (whole.double() / 0x800).to(dtype).view(shape)
    mantissa, one = _SHAPES[dtype]
    top = 8 * torch.empty(0, dtype=dtype).element_size() - 1
    places = torch.arange(count, dtype=torch.int64, device=device)
    sign = (words >> 17) & 1
    if pattern == "checkerboard":
        low = (_CHECKER >> (places & 1)) & ((1 << mantissa) - 1)
        bits = one | low
    elif pattern == "walking":
        bits = one | (torch.ones_like(places) << (places % mantissa))
    else:
        bits = (words >> 5) & ((1 << mantissa) - 1)
    return _as_floats(bits, sign, top, dtype).view(shape)


def raw(count: int, pattern: str, device: torch.device, seed: int) -> torch.Tensor:
    """64-bit words of any bits, for copies and memory."""
    if pattern == "checkerboard":
        places = torch.arange(count, dtype=torch.int64, device=device)
        return torch.where(places % 2 == 0, _CHECKER, ~_CHECKER)
    if pattern == "walking":
        places = torch.arange(count, dtype=torch.int64, device=device)
        return torch.ones_like(places) << (places % 64)
    return mixed(count, seed, device)


def _as_floats(
    bits: torch.Tensor, sign: torch.Tensor, top: int, dtype: torch.dtype
) -> torch.Tensor:
    whole = bits | (sign << top)
    if top < 63:  # the same bits as a number that the narrower signed integer holds
        whole = torch.where(whole >= 1 << top, whole - (1 << (top + 1)), whole)
    size = (top + 1) // 8
    narrow = whole.to(torch.int8).view(torch.uint8) if size == 1 else whole.to(_INTS[size])
    return narrow.view(dtype)
