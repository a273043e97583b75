"""A permutation of rows or columns: found by exact hashes of them, and put into words.

A row's hash is the sum of its entries' bits, each times an odd number of its column, modulo 2^64:
whole numbers, so that it does not depend on the order in which blocks of a matrix are read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...dtypes import Array
from ..constants import PERMUTATION_FACTORINGS
from .blocks import blocks


def permutation(a: Array, b: Array, axis: int) -> Array | None:
    """The p with `b[i] == a[p[i]]` along an axis, bit by bit; None where there is none."""
    theirs, ours = _hashes(b, axis), _hashes(a, axis)
    to, source = np.argsort(theirs, kind="stable"), np.argsort(ours, kind="stable")
    if not np.array_equal(theirs[to], ours[source]):
        return None
    found = np.empty(len(to), np.int64)
    found[to] = source
    return found


def _hashes(array: Array, axis: int) -> Array:
    """One number for each row (axis 0) or each column (axis 1) of a matrix, or entry of a list."""
    bits = np.dtype(f"u{array.dtype.itemsize}")
    many = array.shape[axis]
    if array.ndim == 1:
        return np.ascontiguousarray(array).view(bits).astype(np.uint64)
    weights = _odd(array.size // many if axis == 0 else array.shape[0])
    found = np.zeros(many, np.uint64)
    for start, block in blocks(array):
        rows = np.ascontiguousarray(block).view(bits).reshape(len(block), -1).astype(np.uint64)
        if axis == 0:
            found[start : start + len(rows)] = (rows * weights).sum(1, dtype=np.uint64)
        else:
            part = weights[start : start + len(rows), None]
            found += (rows * part).sum(0, dtype=np.uint64)
    return found


def _odd(count: int) -> Array:
    numbers = np.random.default_rng(0).integers(0, 2**63, count, dtype=np.uint64)
    return numbers * np.uint64(2) + np.uint64(1)


def in_words(order: Array) -> str:
    """What a permutation does: `b[i] == a[order[i]]`."""
    n = len(order)
    straight = np.arange(n)
    moved = np.flatnonzero(order != straight)
    if np.array_equal(order, straight[::-1]):
        return "reversed"
    if len(moved) == 2:
        return f"{moved[0]} and {moved[1]} swapped"
    shift = int(order[0])
    if np.array_equal(order, np.roll(straight, -shift)):
        return f"shifted by {min(shift, n - shift)}"
    for groups, outer, inner, size in _factorings(n):
        dealt = straight.reshape(groups, outer, inner, size).swapaxes(1, 2).ravel()
        if np.array_equal(order, dealt):
            return _dealt(groups, outer, inner, size)
    return _swapped_blocks(order) or f"{len(moved)} of {n} in another order"


def _factorings(n: int) -> Iterator[tuple[int, int, int, int]]:
    """Ways to see an axis as groups of `outer` x `inner` pieces, the plainest first."""
    tried = 0
    divisors = [d for d in range(1, n + 1) if n % d == 0] if n < 1 << 17 else []
    for size in divisors:
        for groups in (d for d in divisors if (n // size) % d == 0):
            rest = n // size // groups
            for outer in (d for d in divisors if rest % d == 0 and 1 < d < rest):
                tried += 1
                if tried > PERMUTATION_FACTORINGS:
                    return
                yield groups, outer, rest // outer, size


def _dealt(groups: int, outer: int, inner: int, size: int) -> str:
    within = f" in each {outer * inner * size}" if groups > 1 else ""
    if outer == 2 and size == 1:
        return f"halves interleaved{within}, as in rotary conversions"
    if inner == 2 and size == 1:
        return f"pairs taken apart into halves{within}, as in rotary conversions"
    pieces = f"pieces of {size}" if size > 1 else "entries"
    return f"{pieces} dealt as {inner} x {outer} instead of {outer} x {inner}{within}"


def _swapped_blocks(order: Array) -> str:
    """Whole blocks in another order: heads, of the largest size that explains it; or nothing."""
    n = len(order)
    joined = order[1:] == order[:-1] + 1
    ends = np.flatnonzero(~joined) + 1
    size = int(np.gcd.reduce(np.append(ends, n)))
    if size < 2 or (order[::size] % size).any():
        return ""
    heads = order[::size] // size
    moved = np.flatnonzero(heads != np.arange(len(heads)))
    if len(moved) == 2:
        return f"blocks {moved[0]} and {moved[1]} of {size} each swapped, as heads are"
    return f"{len(moved)} of {len(heads)} blocks of {size} each in another order, as heads are"
