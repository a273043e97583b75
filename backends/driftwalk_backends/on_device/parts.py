# mypy: ignore-errors
# ruff: noqa: N803
"""What kernels and host tell each other, where each number stands, and what kernels have in common.

Kernels are written in Triton's language, which sees names of a module only as `constexpr`.
"""

from __future__ import annotations

import torch
import triton.language as tl
from triton import jit
from triton.language import bfloat16, constexpr, float16, float32

KINDS = {torch.float16: float16, torch.bfloat16: bfloat16, torch.float32: float32}


def _from(first: int, count: int) -> tuple[constexpr, ...]:
    return tuple(constexpr(number) for number in range(first, first + count))


# What the host tells of each pair, as int64: addresses, sizes, bits of float64, places in `out`.
R_AT, C_AT, ROWS_AT, R_SQUARES, C_SQUARES = _from(0, 5)
COUNT, WIDTH, PARTS, SURVEYORS = _from(5, 4)
ATOL, RTOL, RMS, HEAD_AT, TABLE_AT, PAIR = _from(9, 6)

MANY = constexpr(32)
"""Pairs that are compared at once, at most."""

# Behind those of so many, what starts as zeros, as int32: how many
# programs are done, the largest values seen (as bits), how many units are to be looked at again,
# and the sample.
SURVEYED, SETTLED, SEEN_TOP, SEEN_REL, SEEN_OVER, AGAIN = _from(0, 6)
SAMPLE, BINS, ZEROS = constexpr(8), constexpr(256), constexpr(8 + 256)

# What a unit leaves, what a program of `settle` leaves and what comes back have the same numbers:
# what `look` adds up, and takes the largest of, ...
DD, RC, ABS, ABOVE, FAR, POISON, LOOKED = (constexpr(n) for n in (0, 1, 2, 3, 7, 8, 9))
# ... and what `settle` does.
BEYOND, REL, OVER, BOTH = _from(9, 4)
EDGES = constexpr(4)
"""Distances from which on is counted: the percentile is found between the first and the last."""

# Only in the table: the largest difference and its place; the n-th unit to be looked at again.
TOP, PLACE_OF_TOP, LISTED, LINE = (constexpr(n) for n in (12, 13, 14, 16))

# Only these come back: what was planned, and the largest difference; then the L2 of each row.
FIRST, SCALE, FLOOR, RR, CC = _from(12, 5)
LEAST_TOP, LEAST_REL, LEAST_FLOOR, LEAST_RTOL = _from(17, 4)
PLACE, WORST_R, WORST_C, HEAD = _from(21, 4)

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
