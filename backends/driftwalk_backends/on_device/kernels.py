# mypy: ignore-errors
# ruff: noqa: F405, N803, PLR0915
"""The kernels that compare held states: in Triton's language, which only looks like Python.

`copy`    keeps a state, and sums the squares of its rows on the way.

Then three launches compare any number of pairs; each pair is cut into units, a row or a part of a
long one, and nothing is waited for:

`survey`  looks at one element in some thirty. That tells about where the 99th percentile of the
          distances in ULPs is, and how large the largest values are at least.
`look`    reads every unit once: sums along a unit are float32, those of units float64. It counts
          distances near the percentile, and lists the units with an element that may be the
          largest in something, or beyond its allowance.
`settle`  looks again, in float64, at the few that are listed: these numbers are exact. Its last
          program adds up what all left.

What they cannot do (NaN, squares beyond float32, a percentile that was missed) is told by the field
`POISON`, or by the counts, and left to the host.
"""

from __future__ import annotations

import triton.language as tl
from triton import jit
from triton.language import constexpr

from .parts import *  # noqa: F403

SHIFT, LOWEST = constexpr(20), constexpr(1015)
"""As in driftwalk.measure.ulp, where 1016 is the bucket of distance 1."""
NEARLY = constexpr(1 - 2.0**-19)
"""What float32 may have made of 1, and more."""
HUGE, FAR_AWAY = constexpr(3e38), constexpr(2**62)
LOW = constexpr(2.0**-80)
"""Squares below may be lost to float32."""
GOLDEN = constexpr(2654435769)
"""Its multiples, modulo 2**32, are spread evenly."""


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
def survey(pairs_at, out_at, R: constexpr, C: constexpr, PLACES: constexpr):
    """Scale and floor; the distance to count from; values that the largest reach."""
    program, programs = tl.program_id(0), size_of(pairs_at, SURVEYORS)
    if program >= programs:
        return
    rows, width = size_of(pairs_at, COUNT), size_of(pairs_at, WIDTH)
    head, zeros = out_at + told_of(pairs_at, HEAD_AT), zeros_of(pairs_at)
    # All over the state, 16 elements at a place: in every row, if there are not too many.
    place = program * PLACES + tl.arange(0, PLACES)
    number = (place.to(tl.float32) * rows / (programs * PLACES)).to(tl.int32)
    first = tl.umulhi(place.to(tl.uint32) * GOLDEN, ((width + 15) // 16).to(tl.uint32)) * 16
    column = first.to(tl.int32)[:, None] + tl.arange(0, 16)[None, :]
    at = (row_of(pairs_at, tl.minimum(number, rows - 1)) * width)[:, None] + column
    there = column < width
    r_raw = tl.load(state_of(pairs_at, R_AT, R) + at, mask=there, other=0.0)
    c_raw = tl.load(state_of(pairs_at, C_AT, C) + at, mask=there, other=0.0)
    rr = squares_of(pairs_at, R_SQUARES, 1024)
    scale = tl.full((), 1.0, tl.float64)
    if told_of(pairs_at, RMS) != 0:
        scale = tl.sqrt(rr / (scale * rows * width))
    floor, rtol = number_of(pairs_at, ATOL) * scale, number_of(pairs_at, RTOL)
    r, c = r_raw.to(tl.float32), c_raw.to(tl.float32)
    a, m = tl.abs(c - r), tl.abs(r)
    _note(zeros + SEEN_TOP, a)
    _note(zeros + SEEN_REL, ratio(a, m))
    _note(zeros + SEEN_OVER, ratio(a, floor.to(tl.float32) + rtol.to(tl.float32) * m))
    bits = steps_between(r_raw, c_raw).to(tl.float32).to(tl.int32, bitcast=True)
    bucket = tl.minimum(tl.maximum((bits >> SHIFT) - LOWEST, 0), BINS - 1)
    counts = tl.histogram(tl.ravel(bucket), BINS, mask=tl.ravel(there))
    tl.atomic_add(zeros + SAMPLE + tl.arange(0, BINS), counts, mask=counts > 0)
    if is_last(zeros + SURVEYED, programs):
        tl.store(head + SCALE, scale)
        tl.store(head + FLOOR, floor)
        tl.store(head + RR, rr)
        tl.store(head + FIRST, _first(zeros))
        tl.store(head + LEAST_TOP, _least(zeros + SEEN_TOP))
        tl.store(head + LEAST_REL, _least(zeros + SEEN_REL))
        # Whatever is beyond its allowance is to be counted, too.
        over = tl.minimum(_least(zeros + SEEN_OVER), NEARLY)
        tl.store(head + LEAST_FLOOR, floor * over)
        tl.store(head + LEAST_RTOL, rtol * over)


@jit
def _note(at, values):
    """The largest that anyone saw: bits of floats that are not negative sort as they do."""
    largest = tl.minimum(tl.max(tl.ravel(values), 0), HUGE)
    tl.atomic_max(at, largest.to(tl.int32, bitcast=True))


@jit
def _least(at):
    # Past the first cache, which does not see what others stored.
    bits = tl.load(at, cache_modifier=".cg")
    return bits.to(tl.float32, bitcast=True).to(tl.float64) * NEARLY


@jit
def _first(zeros):
    """The distance to count from: a bucket below that of the percentile."""
    counts = tl.load(zeros + SAMPLE + tl.arange(0, BINS), cache_modifier=".cg")
    below = tl.cumsum(counts, 0).to(tl.float32)
    bucket = tl.sum((below < 0.99 * tl.sum(counts, 0)).to(tl.int32), 0)
    bucket = tl.where(bucket > 0, bucket + LOWEST, 0)
    middle = (bucket << SHIFT).to(tl.float32, bitcast=True)
    before = (tl.maximum(bucket - 1, 0) << SHIFT).to(tl.float32, bitcast=True)
    return tl.where(middle < 16, tl.maximum(middle - 1, 1.0), before).to(tl.float64)


@jit
def _next(edge):
    """The start of the next bucket that holds a whole number."""
    after = (((edge.to(tl.int32, bitcast=True) >> SHIFT) + 1) << SHIFT).to(tl.float32, bitcast=True)
    return tl.maximum(after, edge + 1)


@jit
def look(
    pairs_at, out_at,
    R: constexpr, C: constexpr, FAST: constexpr, EVEN: constexpr,
    PART: constexpr, LANES: constexpr, EACH: constexpr,
):  # fmt: skip
    """Some units: sums, counts, and whether to look again."""
    width, parts = size_of(pairs_at, WIDTH), size_of(pairs_at, PARTS)
    units = size_of(pairs_at, COUNT) * parts
    r_at, c_at = state_of(pairs_at, R_AT, R), state_of(pairs_at, C_AT, C)
    head, table = out_at + told_of(pairs_at, HEAD_AT), out_at + told_of(pairs_at, TABLE_AT)
    top = tl.load(head + LEAST_TOP).to(tl.float32)
    rel = tl.load(head + LEAST_REL).to(tl.float32)
    floor = tl.load(head + LEAST_FLOOR).to(tl.float32)
    rtol = tl.load(head + LEAST_RTOL).to(tl.float32)
    e0 = tl.load(head + FIRST).to(tl.float32)
    e1 = _next(e0)
    e2 = _next(e1)
    e3 = _next(e2)
    lane = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    for unit in range(tl.program_id(0), units, tl.num_programs(0)):
        start = row_of(pairs_at, unit // parts) * width
        begin = unit % parts * PART
        end = tl.minimum(width, begin + PART)
        r_row, c_row = r_at + start, c_at + start
        if EVEN:  # so that a lane reads all its elements at once
            r_row, c_row = tl.multiple_of(r_row, 16), tl.multiple_of(c_row, 16)
            end = tl.multiple_of(end, 16)
        dd = tl.zeros((LANES,), tl.float32)
        rc = tl.zeros((LANES,), tl.float32)
        total = tl.zeros((LANES,), tl.float32)
        peak = tl.zeros((LANES,), tl.float32)
        slack = tl.zeros((LANES,), tl.float32)
        far = tl.zeros((LANES,), tl.float32 if C.primitive_bitwidth == 16 else tl.uint32)
        # Two counts in one float: each stays below 4096, since no lane sees more elements.
        low = tl.zeros((LANES,), tl.float32)
        high = tl.zeros((LANES,), tl.float32)
        for here in range(begin, end, LANES * EACH):
            at = here + lane
            r_raw = tl.load(r_row + at, mask=at < end, other=0.0)
            c_raw = tl.load(c_row + at, mask=at < end, other=0.0)
            r, c = r_raw.to(tl.float32), c_raw.to(tl.float32)
            d = c - r
            a, m = tl.abs(d), tl.abs(r)
            dd += tl.sum(d * d, 1)
            rc += tl.sum(r * c, 1)
            total += tl.sum(a, 1)
            slack = tl.maximum(slack, tl.max(slack_of(a, m, top, rel, floor, rtol, FAST), 1))
            if not FAST:
                peak = tl.maximum(peak, tl.max(a, 1))
            distance = steps_between(r_raw, c_raw)
            far = tl.maximum(far, tl.max(distance, 1))
            # Beyond 2**24 they are rounded, and so they are by those who choose a bucket.
            steps = distance.to(tl.float32)
            low += tl.sum((steps >= e0).to(tl.float32) + (steps >= e1).to(tl.float32) * 4096, 1)
            high += tl.sum((steps >= e2).to(tl.float32) + (steps >= e3).to(tl.float32) * 4096, 1)
        to = table + unit * tl.full((), LINE, tl.int64)
        all_dd = tl.sum(dd.to(tl.float64), 0)
        good = all_dd < float("inf")
        if not FAST:
            # Squares may be lost below float32, which those of float16 never are.
            good &= (all_dd > LOW) | (tl.max(peak, 0) == 0)
        tl.store(to + DD, all_dd)
        tl.store(to + RC, tl.sum(rc.to(tl.float64), 0))
        tl.store(to + ABS, tl.sum(total.to(tl.float64), 0))
        low_bits, high_bits = low.to(tl.int32), high.to(tl.int32)
        tl.store(to + ABOVE, tl.sum(low_bits & 4095, 0).to(tl.float64))
        tl.store(to + ABOVE + 1, tl.sum(low_bits >> 12, 0).to(tl.float64))
        tl.store(to + ABOVE + 2, tl.sum(high_bits & 4095, 0).to(tl.float64))
        tl.store(to + ABOVE + 3, tl.sum(high_bits >> 12, 0).to(tl.float64))
        tl.store(to + FAR, tl.max(far, 0).to(tl.float64))
        tl.store(to + POISON, 1.0 - good.to(tl.float64))
        if tl.max(slack, 0) > 0:
            place = tl.atomic_add(zeros_of(pairs_at) + AGAIN, 1)
            tl.store(table + place * tl.full((), LINE, tl.int64) + LISTED, unit * 1.0)


@jit
def settle(
    pairs_at, out_at,
    R: constexpr, C: constexpr, FAST: constexpr, PART: constexpr, BLOCK: constexpr,
    PROGRAMS: constexpr,
):  # fmt: skip
    """Adds up some units, and looks again at some that are listed; the last adds up all."""
    width, parts = size_of(pairs_at, WIDTH), size_of(pairs_at, PARTS)
    units = size_of(pairs_at, COUNT) * parts
    program, zeros = tl.program_id(0), zeros_of(pairs_at)
    r_at, c_at = state_of(pairs_at, R_AT, R), state_of(pairs_at, C_AT, C)
    head, table = out_at + told_of(pairs_at, HEAD_AT), out_at + told_of(pairs_at, TABLE_AT)
    left = table + units * tl.full((), LINE, tl.int64)
    _add_units(table, left, program, units, PROGRAMS)
    _tell_rows(table, head, program, units // parts, parts, PROGRAMS)
    floor, rtol = tl.load(head + FLOOR), number_of(pairs_at, RTOL)
    least_top = tl.load(head + LEAST_TOP).to(tl.float32)
    least_rel = tl.load(head + LEAST_REL).to(tl.float32)
    least_floor = tl.load(head + LEAST_FLOOR).to(tl.float32)
    least_rtol = tl.load(head + LEAST_RTOL).to(tl.float32)
    # Of states that are the same, the first element stands for all.
    best = tl.full((), 0.0, tl.float64)
    place = tl.full((), 0, tl.int64)
    rel = tl.full((), 0.0, tl.float64)
    over = tl.full((), 0.0, tl.float64)
    beyond = tl.full((), 0, tl.int64)
    for number in range(program, tl.load(zeros + AGAIN), PROGRAMS):
        unit = tl.load(table + number * tl.full((), LINE, tl.int64) + LISTED).to(tl.int32)
        start = row_of(pairs_at, unit // parts) * width
        begin = unit % parts * PART
        end = tl.minimum(width, begin + PART)
        for here in range(begin, end, BLOCK):
            at = here + tl.arange(0, BLOCK)
            r = tl.load(r_at + start + at, mask=at < end, other=0.0).to(tl.float32)
            c = tl.load(c_at + start + at, mask=at < end, other=0.0).to(tl.float32)
            a, m = tl.abs(c - r), tl.abs(r)
            slack = slack_of(a, m, least_top, least_rel, least_floor, least_rtol, FAST)
            if tl.max(slack, 0) > 0:
                x, y = r.to(tl.float64), c.to(tl.float64)
                gap, size = tl.abs(y - x), tl.abs(x)
                room = floor + rtol * size
                largest = tl.max(gap, 0)
                column = tl.min(tl.where(gap == largest, at, PART * parts), 0)
                found = (unit // parts) * tl.full((), 1, tl.int64) * width + column
                sooner = (largest > best) | ((largest == best) & (found < place))
                place = tl.where(sooner, found, place)
                best = tl.maximum(best, largest)
                rel = tl.maximum(rel, tl.max(ratio(gap, size), 0))
                over = tl.maximum(over, tl.max(ratio(gap, room), 0))
                beyond += tl.sum((gap > room).to(tl.int32), 0)
    mine = left + program * LINE
    tl.store(mine + BEYOND, beyond.to(tl.float64))
    tl.store(mine + REL, rel)
    tl.store(mine + OVER, over)
    tl.store(mine + TOP, best)
    tl.store(mine + PLACE_OF_TOP, place.to(tl.float64))
    if is_last(zeros + SETTLED, PROGRAMS):
        _add_programs(left, head, PROGRAMS)
        place = _place(left, PROGRAMS)
        element = row_of(pairs_at, (place // width).to(tl.int32)) * width + place % width
        tl.store(head + PLACE, place.to(tl.float64))
        tl.store(head + WORST_R, tl.load(r_at + element).to(tl.float64))
        tl.store(head + WORST_C, tl.load(c_at + element).to(tl.float64))
        tl.store(head + CC, squares_of(pairs_at, C_SQUARES, 1024))


@jit
def _add_units(table, left, program, units, PROGRAMS: constexpr):
    """What some units left, added up, or the largest of it."""
    field = tl.arange(0, LINE)
    found = tl.zeros((32, LINE), tl.float64)
    share = (units + PROGRAMS - 1) // PROGRAMS
    end = tl.minimum(units, (program + 1) * share)
    for begin in range(program * share, end, 32):
        unit = begin + tl.arange(0, 32)
        at = table + (unit * tl.full((), LINE, tl.int64))[:, None] + field[None, :]
        there = (unit < end)[:, None] & (field < LOOKED)[None, :]
        more = tl.load(at, mask=there, other=0.0)
        found = tl.where((field < FAR)[None, :], found + more, tl.maximum(found, more))
    told = tl.where(field < FAR, tl.sum(found, 0), tl.max(found, 0))
    tl.store(left + program * LINE + field, told, mask=field < LOOKED)


@jit
def _tell_rows(table, head, program, rows, parts, PROGRAMS: constexpr):
    """The L2 of some rows, from what their units left."""
    for begin in range(program * 32, rows, PROGRAMS * 32):
        row = begin + tl.arange(0, 32)
        squares = tl.zeros((32,), tl.float64)
        for part in range(parts):
            at = table + (row * parts + part) * tl.full((), LINE, tl.int64) + DD
            squares += tl.load(at, mask=row < rows, other=0.0)
        tl.store(head + HEAD + row, tl.sqrt(squares), mask=row < rows)


@jit
def _add_programs(left, head, PROGRAMS: constexpr):
    """The same of what all programs left."""
    field = tl.arange(0, LINE)
    at = left + tl.arange(0, PROGRAMS)[:, None] * LINE + field[None, :]
    # Past the first cache, which does not see what others stored.
    found = tl.load(at, mask=(field < BOTH)[None, :], other=0.0, cache_modifier=".cg")
    summed = (field < FAR) | (field == BEYOND)
    tl.store(head + field, tl.where(summed, tl.sum(found, 0), tl.max(found, 0)), mask=field < BOTH)


@jit
def _place(left, PROGRAMS: constexpr):
    """Where the largest difference is: of several as large, the first."""
    mine = left + tl.arange(0, PROGRAMS) * LINE
    top = tl.load(mine + TOP, cache_modifier=".cg")
    place = tl.load(mine + PLACE_OF_TOP, cache_modifier=".cg").to(tl.int64)
    return tl.min(tl.where(top == tl.max(top, 0), place, FAR_AWAY), 0)
