# mypy: ignore-errors
# ruff: noqa: N803, PLR0915
"""The kernels behind held.py: written in Triton's language, which only looks like Python.

`copy`    keeps a state, and sums the squares of its rows on the way.

Then three launches a pair; each program takes some rows, or parts of long ones, and nothing is
waited for:

`survey`  samples distances in ULPs, which say about where their 99th percentile is, and makes of
          the squares what is allowed.
`look`    forms all sums in float32 along a row, and adds up in float64. It counts the distances
          near the percentile, and leaves the largest differences and ratios that each program saw,
          right to a few units in the last place of float32.
`settle`  looks again, in float64, at the blocks that can hold the largest of all, or an element
          beyond its allowance: these numbers are exact. Its last program adds up what all left.

What they cannot do (NaN, squares beyond float32, a percentile that was missed) is told by the field
`POISON`, or by the counts, and left to the host.
"""

from __future__ import annotations

import triton.language as tl
from triton import jit
from triton.language import constexpr

EDGES = constexpr(6)
"""Distances from which on is counted: the percentile is found between the first and the last."""

# What each program leaves and what comes back have the same numbers: first what is added up, ...
RR, CC, RC, ABS, ABOVE, BEYOND, SUMMED = (constexpr(n) for n in (0, 1, 2, 3, 4, 10, 11))
# ... then what the largest is taken of.
FAR, POISON, REL, OVER, LARGEST = (constexpr(n) for n in (11, 12, 13, 14, 15))
# Only programs leave these: what is nearly so, and the exact largest difference and its place.
NEAR_TOP, NEAR_REL, NEAR_OVER, TOP, AT, TABLE = (constexpr(n) for n in range(15, 21))
# Only these come back: what was planned, the largest difference; then the rows, squared.
FIRST, SCALE, FLOOR, PLACE, WORST_R, WORST_C, HEAD = (constexpr(n) for n in range(15, 22))

# What starts as zeros: the largest values so far, as bits, programs that are done, the sample.
MAX_TOP, MAX_REL, MAX_OVER, SURVEYED, SETTLED, SAMPLE = (constexpr(n) for n in range(6))
COPIES, BINS = constexpr(16), constexpr(256)
"""Sampled distances are counted in several places: who counts in one must wait for each other."""
ZEROS = constexpr(6 + 16 * 256)

SHIFT, LOWEST = constexpr(20), constexpr(1015)
"""As in driftwalk.ulp, where 1016 is the bucket of distance 1; a kernel sees only its own file."""

NOWHERE = constexpr(2147483647)
NEARLY = constexpr(1 - 2.0**-19)
"""What float32 may have made of 1, and more."""
LOW = constexpr(2.0**-80)
TINY = constexpr(1e-30)


@jit
def _steps(r_raw, c_raw):
    """Distances in ULPs of the candidate's format."""
    whole: constexpr = tl.int16 if c_raw.dtype.primitive_bitwidth == 16 else tl.int32
    half: constexpr = 0x7FFF if c_raw.dtype.primitive_bitwidth == 16 else 0x7FFFFFFF
    x = r_raw.to(c_raw.dtype).to(whole, bitcast=True).to(tl.int32)
    y = c_raw.to(whole, bitcast=True).to(tl.int32)
    x = tl.where(x < 0, -(x & half), x)
    y = tl.where(y < 0, -(y & half), y)
    # As much as 2**32: the difference may wrap, and is right without its sign.
    return (tl.maximum(x, y) - tl.minimum(x, y)).to(tl.uint32, bitcast=True)


@jit
def _ratio(top, bottom):
    """With 0/0 = 0 and x/0 = inf."""
    return tl.where(top > 0, top / bottom, 0.0)


@jit
def _is_last(counter_at, programs):
    """Whether all other programs are done, and what they stored can be read."""
    tl.debug_barrier()
    return tl.atomic_add(counter_at, 1) == programs - 1


@jit
def _row(rows_at, number, ALL: constexpr):
    """The number, in the state, of a row that counts."""
    return tl.full((), 0, tl.int64) + (number if ALL else tl.load(rows_at + number))


@jit
def copy(x_at, y_at, squares_at, width, BLOCK: constexpr):
    """One row: a copy of it, and its squares."""
    row = tl.program_id(0)
    start = row.to(tl.int64) * width
    squares = tl.zeros((BLOCK,), tl.float64)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        x = tl.load(x_at + start + at, mask=at < width, other=0.0)
        tl.store(y_at + start + at, x, mask=at < width)
        if x.dtype == tl.float32:
            squares += x.to(tl.float64) * x.to(tl.float64)
        else:  # whose squares float32 holds exactly
            squares += (x.to(tl.float32) * x.to(tl.float32)).to(tl.float64)
    tl.store(squares_at + row, tl.sum(squares, 0))


@jit
def survey(
    r_at, c_at, rows_at, squares_at, room_at, zeros_at, out_at,
    rows, width,
    ALL: constexpr, RMS: constexpr, SAMPLED: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Scale and floor; the distances to count from."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    # All over the state: in every row, if there are not too many, and nowhere twice in a line.
    sample = (program * SAMPLED + tl.arange(0, SAMPLED)).to(tl.int64)
    number = (sample * rows // (programs * SAMPLED)).to(tl.int32)
    column = sample * 40503 % width
    element = _row(rows_at, number, ALL) * width + column
    distance = _steps(tl.load(r_at + element), tl.load(c_at + element))
    bucket = (distance.to(tl.float32).to(tl.int32, bitcast=True) >> SHIFT) - LOWEST
    bucket = tl.minimum(tl.maximum(bucket, 0), BINS - 1)
    tl.atomic_add(zeros_at + SAMPLE + program % COPIES * BINS + bucket, 1)
    if _is_last(zeros_at + SURVEYED, programs):
        _plan(rows_at, squares_at, room_at, zeros_at, out_at, rows, width, ALL, RMS, BLOCK)


@jit
def _plan(
    rows_at, squares_at, room_at, zeros_at, out_at, rows, width,
    ALL: constexpr, RMS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    places = tl.arange(0, COPIES)[:, None] * BINS + tl.arange(0, BINS)[None, :]
    # Past the first cache, which does not see what others stored.
    counts = tl.sum(tl.load(zeros_at + SAMPLE + places, cache_modifier=".cg"), 0)
    below = tl.cumsum(counts, 0).to(tl.float32)
    bucket = tl.sum((below < 0.99 * tl.sum(counts, 0)).to(tl.int32), 0)
    bucket = tl.where(bucket > 0, bucket + LOWEST, 0)
    middle = (bucket << SHIFT).to(tl.float32, bitcast=True)
    first = (tl.maximum(bucket - 2, 0) << SHIFT).to(tl.float32, bitcast=True)
    first = tl.where(first < 8, tl.maximum(middle - 2, 1.0), first)
    tl.store(out_at + FIRST, first.to(tl.float64))
    scale = tl.full((), 1.0, tl.float64)
    if RMS:
        squares = tl.zeros((BLOCK,), tl.float64)
        for begin in range(0, rows, BLOCK):
            number = begin + tl.arange(0, BLOCK)
            some = number < rows
            row = number if ALL else tl.load(rows_at + number, mask=some, other=0)
            squares += tl.load(squares_at + row, mask=some, other=0.0)
        scale = tl.sqrt(tl.sum(squares, 0) / (scale * rows * width))
    tl.store(out_at + SCALE, scale)
    tl.store(out_at + FLOOR, tl.load(room_at) * scale)


@jit
def _next(edge):
    """The start of the next bucket that holds a whole number."""
    after = (((edge.to(tl.int32, bitcast=True) >> SHIFT) + 1) << SHIFT).to(tl.float32, bitcast=True)
    return tl.maximum(after, edge + 1)


@jit
def _quotient(top, bottom, FAST: constexpr):
    """About top / bottom; where both are zero, 0 or NaN, which no maximum takes."""
    if FAST:  # no subnormal float32 comes from float16
        return tl.inline_asm_elementwise(
            "div.approx.ftz.f32 $0, $1, $2;", "=f,f,f", [top, bottom], tl.float32, True, 1
        )
    return _ratio(top, bottom)


@jit
def look(
    r_at, c_at, rows_at, room_at, zeros_at, table_at, out_at,
    rows, width, parts, share,
    ALL: constexpr, FAST: constexpr, PART: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Some parts of rows: sums, counts, and about how large the largest are."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    floor = tl.load(out_at + FLOOR).to(tl.float32)
    rtol = tl.load(room_at + 1).to(tl.float32)
    e0 = tl.load(out_at + FIRST).to(tl.float32)
    e1 = _next(e0)
    e2 = _next(e1)
    e3 = _next(e2)
    e4 = _next(e3)
    e5 = _next(e4)
    rr = tl.zeros((BLOCK,), tl.float32)
    cc = tl.zeros((BLOCK,), tl.float32)
    rc = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    top = tl.zeros((BLOCK,), tl.float32)
    rel = tl.zeros((BLOCK,), tl.float32)
    over = tl.zeros((BLOCK,), tl.float32)
    far = tl.zeros((BLOCK,), tl.uint32)
    # Three counts in one float: each stays below 256, since no lane sees more elements.
    low = tl.zeros((BLOCK,), tl.float32)
    high = tl.zeros((BLOCK,), tl.float32)
    good = tl.full((), 1, tl.int1)
    for unit in range(program * share, tl.minimum((program + 1) * share, rows * parts)):
        start = _row(rows_at, unit // parts, ALL) * width
        dd = tl.zeros((BLOCK,), tl.float32)
        peak = tl.zeros((BLOCK,), tl.float32)
        end = tl.minimum(width, (unit % parts + 1) * PART)
        for begin in range(unit % parts * PART, end, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            r_raw = tl.load(r_at + start + at, mask=at < end, other=0.0)
            c_raw = tl.load(c_at + start + at, mask=at < end, other=0.0)
            r, c = r_raw.to(tl.float32), c_raw.to(tl.float32)
            d = c - r
            a, m = tl.abs(d), tl.abs(r)
            dd += d * d
            rr += r * r
            cc += c * c
            rc += r * c
            total += a
            peak = tl.maximum(peak, a)
            rel = tl.maximum(rel, _quotient(a, m, FAST))
            over = tl.maximum(over, _quotient(a, floor + rtol * m, FAST))
            distance = _steps(r_raw, c_raw)
            far = tl.maximum(far, distance)
            # Beyond 2**24 they are rounded, and so they are by those who choose a bucket.
            steps = distance.to(tl.float32)
            low += (steps >= e0).to(tl.float32)
            low += (steps >= e1).to(tl.float32) * 256
            low += (steps >= e2).to(tl.float32) * 65536
            high += (steps >= e3).to(tl.float32)
            high += (steps >= e4).to(tl.float32) * 256
            high += (steps >= e5).to(tl.float32) * 65536
        row_dd = tl.sum(dd.to(tl.float64), 0)
        top = tl.maximum(top, peak)
        if not FAST:
            # Squares may be lost below float32, which those of float16 never are.
            good &= (row_dd > LOW) | (tl.max(peak, 0) == 0)
        tl.store(out_at + HEAD + unit, row_dd)
    all_rr, all_cc = tl.sum(rr.to(tl.float64), 0), tl.sum(cc.to(tl.float64), 0)
    most, most_rel, most_over = tl.max(top, 0), tl.max(rel, 0), tl.max(over, 0)
    good &= (all_rr + all_cc < float("inf")) & ((floor == 0) | (floor > TINY))
    if not FAST:
        good &= (all_rr > LOW) & (all_cc > LOW) & ((floor > 0) | (rtol == 0))
    to = table_at + program
    tl.store(to + RR * programs, all_rr)
    tl.store(to + CC * programs, all_cc)
    tl.store(to + RC * programs, tl.sum(rc.to(tl.float64), 0))
    tl.store(to + ABS * programs, tl.sum(total.to(tl.float64), 0))
    low_bits, high_bits = low.to(tl.int32), high.to(tl.int32)
    for field in tl.static_range(3):
        some = tl.sum((low_bits >> (8 * field)) & 255, 0)
        tl.store(to + (ABOVE + field) * programs, some.to(tl.float64))
        more = tl.sum((high_bits >> (8 * field)) & 255, 0)
        tl.store(to + (ABOVE + 3 + field) * programs, more.to(tl.float64))
    tl.store(to + FAR * programs, tl.max(far, 0).to(tl.float64))
    tl.store(to + POISON * programs, 1.0 - good.to(tl.float64))
    tl.store(to + NEAR_TOP * programs, most.to(tl.float64))
    tl.store(to + NEAR_REL * programs, most_rel.to(tl.float64))
    tl.store(to + NEAR_OVER * programs, most_over.to(tl.float64))
    # Bits of floats that are not negative sort as they do.
    tl.atomic_max(zeros_at + MAX_TOP, most.to(tl.int32, bitcast=True))
    tl.atomic_max(zeros_at + MAX_REL, most_rel.to(tl.int32, bitcast=True))
    tl.atomic_max(zeros_at + MAX_OVER, most_over.to(tl.int32, bitcast=True))


@jit
def _most(zeros_at, which: constexpr):
    return tl.load(zeros_at + which).to(tl.float32, bitcast=True)


@jit
def _reaches(a, m, least):
    """Whether a / m can be as large as that; none is where a is zero."""
    return (a > 0) & ((a >= least * m) | (m == 0))


@jit
def settle(
    r_at, c_at, rows_at, room_at, zeros_at, table_at, out_at,
    rows, width, parts, share,
    ALL: constexpr, PART: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The same parts again, if they can hold a largest value; the last program adds up all."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    floor, rtol = tl.load(out_at + FLOOR), tl.load(room_at + 1)
    # To float32 no smaller difference is larger; ratios may be off by a little.
    least_top = _most(zeros_at, MAX_TOP)
    least_rel = _most(zeros_at, MAX_REL) * NEARLY
    least_over = tl.minimum(_most(zeros_at, MAX_OVER), 1.0) * NEARLY
    to = table_at + program
    top = tl.load(to + NEAR_TOP * programs).to(tl.float32)
    may = top >= least_top
    may |= tl.load(to + NEAR_REL * programs).to(tl.float32) >= least_rel
    may |= tl.load(to + NEAR_OVER * programs).to(tl.float32) >= least_over
    # Of states that are the same, the first element stands for all.
    best = tl.where(program == 0, 0.0, -1.0).to(tl.float64)
    place = tl.full((), 0, tl.int64)
    rel = tl.full((), 0.0, tl.float64)
    over = tl.full((), 0.0, tl.float64)
    beyond = tl.full((), 0, tl.int32)
    if may & (top > 0):
        for unit in range(program * share, tl.minimum((program + 1) * share, rows * parts)):
            start = _row(rows_at, unit // parts, ALL) * width
            end = tl.minimum(width, (unit % parts + 1) * PART)
            for begin in range(unit % parts * PART, end, BLOCK):
                at = begin + tl.arange(0, BLOCK)
                r = tl.load(r_at + start + at, mask=at < end, other=0.0).to(tl.float32)
                c = tl.load(c_at + start + at, mask=at < end, other=0.0).to(tl.float32)
                a, m = tl.abs(c - r), tl.abs(r)
                here = (a >= least_top) | _reaches(a, m, least_rel * NEARLY)
                allowed = floor.to(tl.float32) + rtol.to(tl.float32) * m
                here |= _reaches(a, allowed, least_over * NEARLY)
                if tl.max(here.to(tl.int32), 0) > 0:
                    x, y = r.to(tl.float64), c.to(tl.float64)
                    gap, size = tl.abs(y - x), tl.abs(x)
                    room = floor + rtol * size
                    largest = tl.max(gap, 0)
                    column = tl.min(tl.where(gap == largest, at, NOWHERE), 0)
                    unit_at = (unit // parts).to(tl.int64) * width + column
                    place = tl.where(largest > best, unit_at, place)
                    best = tl.maximum(best, largest)
                    rel = tl.maximum(rel, tl.max(_ratio(gap, size), 0))
                    over = tl.maximum(over, tl.max(_ratio(gap, room), 0))
                    beyond += tl.sum((gap > room).to(tl.int32), 0)
    tl.store(to + TOP * programs, best)
    tl.store(to + AT * programs, place.to(tl.float64))
    tl.store(to + REL * programs, rel)
    tl.store(to + OVER * programs, over)
    tl.store(to + BEYOND * programs, beyond.to(tl.float64))
    if _is_last(zeros_at + SETTLED, programs):
        _gather(r_at, c_at, rows_at, table_at, out_at, width, programs, ALL)


@jit
def _gather(r_at, c_at, rows_at, table_at, out_at, width, programs, ALL: constexpr):
    """What all programs left, added up, or the largest of it."""
    field = tl.arange(0, 16)
    found = tl.zeros((16, 64), tl.float64)
    highest = tl.full((64,), -1.0, tl.float64)
    first = tl.full((64,), 0.0, tl.float64)
    for begin in range(0, programs, 64):
        number = begin + tl.arange(0, 64)
        some = number < programs
        here = table_at + field[:, None] * programs + number[None, :]
        there = some[None, :] & (field < LARGEST)[:, None]
        more = tl.load(here, mask=there, other=0.0, cache_modifier=".cg")
        found = tl.where((field < SUMMED)[:, None], found + more, tl.maximum(found, more))
        top_at, at_at = table_at + TOP * programs + number, table_at + AT * programs + number
        top = tl.load(top_at, mask=some, other=-1.0, cache_modifier=".cg")
        at = tl.load(at_at, mask=some, other=0.0, cache_modifier=".cg")
        first = tl.where(top > highest, at, first)
        highest = tl.maximum(highest, top)
    told = tl.where(field < SUMMED, tl.sum(found, 1), tl.max(found, 1))
    tl.store(out_at + field, told, mask=field < LARGEST)
    # Of several as large, the first: places are below 2**53.
    place = tl.min(tl.where(highest == tl.max(highest, 0), first, 9e15), 0).to(tl.int64)
    element = _row(rows_at, (place // width).to(tl.int32), ALL) * width + place % width
    tl.store(out_at + PLACE, place.to(tl.float64))
    tl.store(out_at + WORST_R, tl.load(r_at + element).to(tl.float64))
    tl.store(out_at + WORST_C, tl.load(c_at + element).to(tl.float64))
