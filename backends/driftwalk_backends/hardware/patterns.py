"""Words that are known beforehand: inputs for units, copies, and memory written and read again.

Bit patterns that find weak cells and lanes, made on the device itself, all from integers, so that
every device makes the same bits: `random` values in [-1, 1), mantissas that are a `checkerboard` or
a `walking` one with exponents near 1, and `denormals`. All are finite, and small enough that sums
of their products are finite in every dtype.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import torch

from .digest import INTS, mixed

PATTERNS = ("random", "checkerboard", "walking", "denormals")
Words = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
"""A name, what should be there, what is there."""

SHARES = {"quick": 0.10, "standard": 0.60, "soak": 0.60}
"""How much of a GPU's free memory is written and read again."""
HOST_BYTES = {"quick": 32 << 20, "standard": 256 << 20, "soak": 256 << 20}
"""The same on a CPU; never more than a tenth of what is available."""
CHUNK = 1 << 27
"""Words at once on a GPU, at most (1 GiB)."""
HOST_CHUNK = 1 << 20
COPY_WORDS = {"quick": 1 << 20, "standard": 1 << 24, "soak": 1 << 24}

# Of each format: bits of the mantissa, and the bits of 1.0.
_SHAPES: dict[torch.dtype, tuple[int, int]] = {
    torch.float64: (52, 0x3FF0000000000000),
    torch.float32: (23, 0x3F800000),
    torch.float16: (10, 0x3C00),
    torch.bfloat16: (7, 0x3F80),
    torch.float8_e4m3fn: (3, 0x38),
}
_CHECKER = 0x5555555555555555


def values(
    pattern: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int
) -> torch.Tensor:
    """A tensor of floats; the same bits on every device."""
    words = mixed(math.prod(shape), seed, device)
    if pattern == "random":
        # 12 bits are exact in every format but fp8 and bf16, where all devices round alike.
        whole = ((words >> 20) & 0xFFF) - 0x800
        return (whole.double() / 0x800).to(dtype).view(shape)
    mantissa, one = _SHAPES[dtype]
    places = torch.arange(len(words), dtype=torch.int64, device=device)
    if pattern == "checkerboard":
        bits = one | (_CHECKER >> (places & 1)) & ((1 << mantissa) - 1)
    elif pattern == "walking":
        bits = one | (torch.ones_like(places) << (places % mantissa))
    else:
        bits = (words >> 5) & ((1 << mantissa) - 1)
    sign = (words >> 17) & 1
    top = 8 * dtype.itemsize - 1
    bits = bits | (sign << top)
    if top < 63:  # the same bits as a number that the narrower signed integer holds
        bits = torch.where(bits >= 1 << top, bits - (1 << (top + 1)), bits)
    narrow = bits.to(torch.int8) if dtype.itemsize == 1 else bits.to(INTS[dtype.itemsize])
    return narrow.view(dtype).view(shape)


def raw(count: int, pattern: str, device: torch.device, seed: int) -> torch.Tensor:
    """64-bit words of any bits, for copies and memory."""
    if pattern not in ("checkerboard", "walking"):
        return mixed(count, seed, device)
    places = torch.arange(count, dtype=torch.int64, device=device)
    if pattern == "checkerboard":
        return torch.where(places % 2 == 0, _CHECKER, ~_CHECKER)
    return torch.ones_like(places) << (places % 64)


def copies(pattern: str, words: int, device: torch.device, seed: int) -> Words:
    """Host to device to host, and within the device."""
    # An odd number of words, so that no copy ends where a page or a block does.
    source = raw(words - 1, pattern, torch.device("cpu"), seed)
    made = raw(words - 1, pattern, device, seed)
    arrived = source.to(device, copy=True)
    yield "made on the device", source, made.cpu()
    yield "host to device", made, arrived
    yield "within the device", made, arrived.flip(0).flip(0)
    yield "device to host", source, arrived.cpu()
    if device.type == "cuda":
        pinned = source.pin_memory()
        landed = torch.empty_like(pinned, pin_memory=True)
        landed.copy_(pinned.to(device, non_blocking=True), non_blocking=True)
        torch.cuda.synchronize(device)
        yield "pinned, there and back", source, landed


def fill(pattern: str, level: str, device: torch.device, seed: int) -> Words:
    """Write a share of the memory, then read all of it.

    Each chunk has words of its own, so that two addresses that reach one cell are found too.
    """
    chunk = HOST_CHUNK
    if device.type == "cuda":  # a chunk is made from several others of its size
        chunk = max(HOST_CHUNK, min(CHUNK, torch.cuda.mem_get_info(device)[0] // 8 // 32))
    count = max(1, min(_bytes_to_fill(device, level) // 8 // chunk, 4096))
    written: list[torch.Tensor] = []
    for number in range(count):
        try:
            written.append(raw(chunk, pattern, device, seed + number))
        except torch.OutOfMemoryError:  # somebody else has taken some: what is there is checked
            torch.cuda.empty_cache()
            break
    for number, kept in enumerate(written):
        yield f"chunk.{number}", raw(chunk, pattern, device, seed + number), kept


def _bytes_to_fill(device: torch.device, level: str) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * SHARES[level])
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        available = 1 << 30
    return min(HOST_BYTES[level], available // 10)
