# mypy: ignore-errors
"""What kernels and host tell each other, and where each number stands.

Kernels are written in Triton's language, which sees names of a module only as `constexpr`.
"""

from __future__ import annotations

import torch
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
