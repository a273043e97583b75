"""All bits of a tensor as 128 bits, formed where the tensor lives; and which bits differ.

The bytes are read as 64-bit words w_i, and two sums are formed modulo 2^64:

    sum over i of  a(i) * w_i        a(i) odd, another sequence for each of the two sums

A change of one word by d != 0 changes each sum by a(i) * d, which is never 0, since a(i) is odd:
whatever bits flip inside one word, both sums see it. Sums of integers do not depend on their order,
so a digest is the same on every device, and however many threads formed it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from driftwalk.tasks.hardware.result import Flip

ROW = 1 << 14
"""Words that share one table of weights; the table times an odd number per row is the next."""
AT_ONCE = {"cuda": 512, "cpu": 8}
"""Rows multiplied together: what the device's cache or a small part of its memory holds."""
KNOWN_ROWS = 4096
"""Rows whose odd numbers are kept; those of larger tensors are made when they are needed."""
MOST_FLIPS = 8

INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_SEEDS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


def mixed(count: int, seed: int, device: torch.device, start: int = 0) -> torch.Tensor:
    """`count` 64-bit words that look random, the same on every device (splitmix64)."""
    z = torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device)
    z = z * _signed(0x9E3779B97F4A7C15) + _signed(seed * 0xD1342543DE82EF95 + 1)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Two 64-bit sums over all bits, on the tensor's device; nothing is waited for."""
    words, device = _words(tensor), tensor.device
    tables = _tables(device)
    full, rest = divmod(words.numel(), ROW)
    # Zeros at the end change no sum; the length does.
    total = torch.full((2,), _signed(tensor.nbytes * _SEEDS[0]), dtype=torch.int64, device=device)
    step = AT_ONCE.get(device.type, 64)
    for start in range(0, full, step):
        some = words[start * ROW : min(full, start + step) * ROW].view(-1, ROW)
        odd = _odd_rows(device, start, len(some))
        sums = torch.stack([(some * table).sum(1) for table in tables])
        total += (sums * odd).sum(1)
    if rest:
        sums = (words[full * ROW :] * tables[:, :rest]).sum(1)
        total += sums * _odd_rows(device, full, 1)[:, 0]
    return total


def as_text(digests: list[torch.Tensor]) -> list[str]:
    """Digests in hexadecimal; this is where a device is waited for, once for all of them."""
    if len({one.device for one in digests}) > 1:
        digests = [one.cpu() for one in digests]
    sums = torch.stack(digests).cpu().tolist() if digests else []
    return [f"{a % 2**64:016x}{b % 2**64:016x}" for a, b in sums]


def as_ints(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits, flat."""
    return tensor.detach().contiguous().reshape(-1).view(INTS[tensor.element_size()])


def locate(expected: torch.Tensor, found: torch.Tensor) -> tuple[int, tuple[Flip, ...]]:
    """How many elements differ in any bit, and the first few of them exactly."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return max(expected.numel(), found.numel()), ()
    if expected.device != found.device:
        expected = expected.to(found.device)
    a, b = as_ints(expected), as_ints(found)
    places = (a != b).nonzero().reshape(-1)
    return places.numel(), tuple(
        _flip(expected, found, int(place)) for place in places[:MOST_FLIPS].tolist()
    )


def _flip(expected: torch.Tensor, found: torch.Tensor, element: int) -> Flip:
    size = 8 * expected.element_size()
    a, b = (int(as_ints(side)[element]) % (1 << size) for side in (expected, found))
    values = [float(side.reshape(-1)[element].double()) for side in (expected, found)]
    return Flip(
        element=element,
        index=tuple(map(int, np.unravel_index(element, expected.shape))),
        bits=tuple(bit for bit in range(size) if (a ^ b) >> bit & 1),
        expected=values[0],
        found=values[1],
        expected_bits=f"{a:0{size // 4}x}",
        found_bits=f"{b:0{size // 4}x}",
    )


@cache
def _tables(device: torch.device) -> torch.Tensor:
    """The odd weights of one row, for both sums."""
    return torch.stack([mixed(ROW, seed ^ 0x5851F42D4C957F2D, device) | 1 for seed in _SEEDS])


def _odd_rows(device: torch.device, start: int, count: int) -> torch.Tensor:
    """The odd numbers of some rows, for both sums."""
    if start + count <= KNOWN_ROWS:
        return _first_rows(device)[:, start : start + count]
    return torch.stack([mixed(count, seed, device, start) | 1 for seed in _SEEDS])


@cache
def _first_rows(device: torch.device) -> torch.Tensor:
    return torch.stack([mixed(KNOWN_ROWS, seed, device) | 1 for seed in _SEEDS])


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as 64-bit words; a last one that is not full is filled up with zeros."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8 or raw.numel() % 8:
        raw = torch.cat([raw, raw.new_zeros(-raw.numel() % 8)])
    return raw.view(torch.int64)


def _shifted(z: torch.Tensor, by: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; torch's own keeps the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    """The same 64 bits as a number that torch takes for an int64."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value
