# mypy: ignore-errors
# ruff: noqa: N803
"""What the kernels have in common: reading what they are told, and arithmetic of elements."""

from __future__ import annotations

import triton.language as tl
from triton import jit
from triton.language import constexpr

from .fields import COUNT, MANY, PAIR, ROWS_AT, ZEROS

SPECK = constexpr(2.0**-146)
"""More than rounding can take from the smallest float32."""


@jit
def told_of(pairs_at, field: constexpr):
    """What the host tells of this program's pair."""
    return tl.load(pairs_at + tl.program_id(1) * PAIR + field)


@jit
def size_of(pairs_at, field: constexpr):
    return told_of(pairs_at, field).to(tl.int32)


@jit
def number_of(pairs_at, field: constexpr):
    return told_of(pairs_at, field).to(tl.float64, bitcast=True)


@jit
def state_of(pairs_at, field: constexpr, KIND: constexpr):
    """Where a state begins."""
    return told_of(pairs_at, field).to(tl.pointer_type(KIND))


@jit
def zeros_of(pairs_at):
    """What starts as zeros for this program's pair."""
    behind = pairs_at + MANY * PAIR
    return behind.to(tl.pointer_type(tl.int32), bitcast=True) + tl.program_id(1) * ZEROS


@jit
def row_of(pairs_at, number):
    """The number, in the state, of a row that counts."""
    rows = told_of(pairs_at, ROWS_AT)
    if rows != 0:
        number = tl.load(rows.to(tl.pointer_type(tl.int32)) + number)
    return number * tl.full((), 1, tl.int64)


@jit
def is_last(counter_at, programs):
    """Whether all other programs are done, and what they stored can be read."""
    tl.debug_barrier()
    return tl.atomic_add(counter_at, 1) == programs - 1


@jit
def ratio(top, bottom):
    """With 0/0 = 0 and x/0 = inf."""
    return tl.where(top > 0, top / bottom, 0.0)


@jit
def steps_between(r_raw, c_raw):
    """Distances in ULPs of the candidate's format: in float32 where that is exact, or uint32."""
    r_raw = r_raw.to(c_raw.dtype)
    if c_raw.dtype.primitive_bitwidth == 16:
        return tl.abs(_ordered(r_raw) - _ordered(c_raw))
    else:
        x, y = r_raw.to(tl.int32, bitcast=True), c_raw.to(tl.int32, bitcast=True)
        x = tl.where(x < 0, -(x & 0x7FFFFFFF), x)
        y = tl.where(y < 0, -(y & 0x7FFFFFFF), y)
        # As much as 2**32: the difference may wrap, and is right without its sign.
        return (tl.maximum(x, y) - tl.minimum(x, y)).to(tl.uint32, bitcast=True)


@jit
def _ordered(raw):
    """The number of a value of 16 bits among all of its format, from zero on, as a float32."""
    magnitude = (raw.to(tl.int16, bitcast=True) & 0x7FFF).to(tl.int32)
    # The last digit of 2**23 stands for 1: what is set there is added.
    whole = (magnitude | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    sign = raw.to(tl.float32).to(tl.int32, bitcast=True) & -0x80000000
    return (whole.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@jit
def squares_of(pairs_at, field: constexpr, BLOCK: constexpr):
    """Those of all rows that count."""
    squares_at, rows = state_of(pairs_at, field, tl.float64), size_of(pairs_at, COUNT)
    total = tl.zeros((BLOCK,), tl.float64)
    for begin in range(0, rows, BLOCK):
        number = begin + tl.arange(0, BLOCK)
        more = tl.load(squares_at + row_of(pairs_at, tl.minimum(number, rows - 1)))
        total += tl.where(number < rows, more, 0.0)
    return tl.sum(total, 0)


@jit
def slack_of(a, m, top, rel, floor, rtol, FAST: constexpr):
    """Above zero where an element may be the largest, or beyond its allowance."""
    slack = a - tl.minimum(tl.minimum(top, rel * m), floor + rtol * m)
    if not FAST:  # subnormal float32 may come
        slack = tl.where(a > 0, slack + SPECK, 0.0)
    return slack
