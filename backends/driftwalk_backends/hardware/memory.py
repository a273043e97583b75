"""Copies between host and device, and memory that is written, left, and read again.

Every word is known beforehand (patterns.py), so that a wrong one is named by its place and bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from .patterns import raw

SHARES = {"quick": 0.10, "standard": 0.60, "soak": 0.60}
"""How much of a GPU's free memory is written and read again."""
HOST_BYTES = {"quick": 32 << 20, "standard": 256 << 20, "soak": 256 << 20}
"""The same on a CPU; never more than a tenth of what is available."""
CHUNK = 1 << 27
"""Words at once on a GPU, at most (1 GiB)."""
HOST_CHUNK = 1 << 20
COPY_WORDS = {"quick": 1 << 20, "standard": 1 << 24, "soak": 1 << 24}


def copies(
    pattern: str, words: int, device: torch.device, seed: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Host to device to host and within the device: each name, what it should be, what it is."""
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


def fill(
    pattern: str, level: str, device: torch.device, seed: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Write a share of the memory, then read all of it: each chunk as it should be, and as it is.

    Each chunk has words of its own, so that two addresses that reach one cell are found too.
    """
    chunk = HOST_CHUNK
    if device.type == "cuda":  # a chunk is made from several others of its size
        chunk = max(HOST_CHUNK, min(CHUNK, torch.cuda.mem_get_info(device)[0] // 8 // 32))
    count = max(1, min(memory_to_fill(device, level) // 8 // chunk, 4096))
    written: list[torch.Tensor] = []
    for number in range(count):
        try:
            written.append(raw(chunk, pattern, device, seed + number))
        except torch.OutOfMemoryError:  # somebody else has taken some: what is there is checked
            torch.cuda.empty_cache()
            break
    for number, kept in enumerate(written):
        yield f"chunk.{number}", raw(chunk, pattern, device, seed + number), kept


def memory_to_fill(device: torch.device, level: str) -> int:
    """In bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * SHARES[level])
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        available = 1 << 30
    return min(HOST_BYTES[level], available // 10)
