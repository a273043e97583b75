"""The Triton kernel behind reduce.py; importing it needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_kernel(
    r_states,
    c_states,
    scales_at,
    numbers_at,
    buckets_at,
    rows,
    width,
    factor,
    rtol,
    stride,
    FIELDS: tl.constexpr,  # noqa: N803
    BUCKETS: tl.constexpr,  # noqa: N803
    FLOAT: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """One row of one pair of many: sums, maxima and where they are, counts; ULPs of a sample.

    The row is walked as if all were finite; one that is not is walked again, with care.
    """
    state = tl.program_id(1)
    row = tl.program_id(0)
    sampled = row % stride == 0
    floor = tl.load(scales_at + state) * factor
    start = row.to(tl.int64) * width
    # Allocations are aligned, which a pointer read from memory does not tell.
    r_row = tl.multiple_of(tl.load(r_states + state).to(tl.pointer_type(FLOAT)), 16) + start
    c_row = tl.multiple_of(tl.load(c_states + state).to(tl.pointer_type(FLOAT)), 16) + start
    to = numbers_at + (state.to(tl.int64) * rows + row) * FIELDS
    into = buckets_at + state * BUCKETS
    poison = _walk(r_row, c_row, to, into, width, floor, rtol, sampled, BUCKETS, BITS, BLOCK, False)
    if poison != 0:
        _walk(r_row, c_row, to, into, width, floor, rtol, sampled, BUCKETS, BITS, BLOCK, True)


@triton.jit
def _walk(  # noqa: PLR0915
    r_row,
    c_row,
    to,
    buckets_at,
    width,
    floor,
    rtol,
    sampled,
    BUCKETS: tl.constexpr,  # noqa: N803
    BITS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    CAREFUL: tl.constexpr,  # noqa: N803
):
    """Leaves the numbers of a row; tells whether something in it is not finite."""
    # Distances of 32-bit values need 33 bits.
    whole: tl.constexpr = tl.int16 if BITS == 16 else tl.int32
    wide: tl.constexpr = tl.int32 if BITS == 16 else tl.int64
    half: tl.constexpr = (1 << (BITS - 1)) - 1
    nowhere: tl.constexpr = 2147483647
    inf = float("inf")
    dd = tl.zeros((BLOCK,), tl.float32)
    rr = tl.zeros((BLOCK,), tl.float32)
    cc = tl.zeros((BLOCK,), tl.float32)
    rc = tl.zeros((BLOCK,), tl.float32)
    abs_d = tl.zeros((BLOCK,), tl.float32)
    best = tl.full((BLOCK,), -1.0, tl.float32)
    best_at = tl.zeros((BLOCK,), tl.int32)
    rel = tl.zeros((BLOCK,), tl.float32)
    over = tl.zeros((BLOCK,), tl.float32)
    beyond = tl.zeros((BLOCK,), tl.int32)
    far = tl.zeros((BLOCK,), wide)
    counts = tl.zeros((64,), tl.int32)
    bad_r, bad_c, bad_r_at, bad_c_at = 0, 0, nowhere, nowhere
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        here = at < width
        r_raw = tl.load(r_row + at, mask=here, other=0.0)
        c_raw = tl.load(c_row + at, mask=here, other=0.0)
        r, c = r_raw.to(tl.float32), c_raw.to(tl.float32)
        x = r_raw.to(whole, bitcast=True).to(wide)
        y = c_raw.to(whole, bitcast=True).to(wide)
        if CAREFUL:
            r_bad, c_bad = ~(tl.abs(r) < inf), ~(tl.abs(c) < inf)
            bad = r_bad | c_bad
            bad_r += tl.sum(r_bad.to(tl.int32), 0)
            bad_c += tl.sum(c_bad.to(tl.int32), 0)
            bad_r_at = tl.minimum(bad_r_at, tl.min(tl.where(r_bad, at, nowhere), 0))
            bad_c_at = tl.minimum(bad_c_at, tl.min(tl.where(c_bad, at, nowhere), 0))
            beyond += bad.to(tl.int32)
            r, c = tl.where(bad, 0.0, r), tl.where(bad, 0.0, c)
            x, y = tl.where(bad, 0, x), tl.where(bad, 0, y)
        d = c - r
        a, m = tl.abs(d), tl.abs(r)
        dd += d * d
        rr += r * r
        cc += c * c
        rc += r * c
        abs_d += a
        best_at = tl.where(a > best, at, best_at)
        best = tl.maximum(best, a)
        # x / 0 is infinite, and 0 / 0 is nothing, which `maximum` passes over.
        rel = tl.maximum(rel, a / m)
        allowed = floor + rtol * m
        over = tl.maximum(over, a / allowed)
        beyond += (a > allowed).to(tl.int32)
        x = tl.where(x < 0, -(x & half), x)
        y = tl.where(y < 0, -(y & half), y)
        steps = tl.abs(x - y)
        far = tl.maximum(far, steps)
        if sampled:
            # The number of bits of a distance is the exponent of it as a float.
            bits = (steps.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 126
            which = tl.where(steps > 0, bits, 0)
            if CAREFUL:
                which = tl.where(bad, 63, which)
            counts += tl.histogram(tl.where(here, which, 63), 64)
    total = tl.sum(rr.to(tl.float64), 0) + tl.sum(cc.to(tl.float64), 0)
    # Squares of float32 may leave its range without anything being wrong: that is walked again too.
    poison = 1 - (total < inf).to(tl.int32)
    if CAREFUL or poison == 0:
        top = tl.max(best, 0)
        tl.store(to + 0, tl.sum(dd.to(tl.float64), 0))
        tl.store(to + 1, tl.sum(rr.to(tl.float64), 0))
        tl.store(to + 2, tl.sum(cc.to(tl.float64), 0))
        tl.store(to + 3, tl.sum(rc.to(tl.float64), 0))
        tl.store(to + 4, tl.sum(abs_d.to(tl.float64), 0))
        tl.store(to + 5, top.to(tl.float64))
        tl.store(to + 6, tl.min(tl.where(best == top, best_at, nowhere), 0).to(tl.float64))
        tl.store(to + 7, tl.max(rel, 0).to(tl.float64))
        tl.store(to + 8, tl.max(over, 0).to(tl.float64))
        tl.store(to + 9, tl.sum(beyond, 0).to(tl.float64))
        tl.store(to + 10, bad_r.to(tl.float64))
        tl.store(to + 11, bad_c.to(tl.float64))
        tl.store(to + 12, bad_r_at.to(tl.float64))
        tl.store(to + 13, bad_c_at.to(tl.float64))
        tl.store(to + 14, tl.max(far, 0).to(tl.float64))
        if sampled:
            number = tl.arange(0, 64)
            tl.atomic_add(buckets_at + number, counts.to(tl.float64), mask=number < BUCKETS)
    return poison
