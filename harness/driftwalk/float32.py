"""Pairs of float32 states: blocks shared out among threads, put together in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from .dtypes import FORMATS, Array
from .kernels import PRECISE, Glance, beyond, glance, largest_relative, place_of
from .sums import Pair, Sums
from .tolerance import Tolerance
from .ulp import UlpHistogram, make_plan, ulp_distance
from .workers import in_threads, workers

AddBlock = Callable[..., None]


def add_float32(sums: Sums, pair: Pair, tolerance: Tolerance, add_block: AddBlock) -> float:
    """A glance at all blocks, a second look where it can matter; gives the scale.

    `add_block` is for blocks in which not all is finite.
    """
    plan = make_plan(_some_distances(pair))
    precise = pair.r.size < PRECISE
    numbers = range(len(pair.blocks))
    glances = in_threads(lambda n: glance(*pair.block(n), plan, precise=precise), numbers)
    scale = _scale(glances, pair, tolerance)
    for number, seen in enumerate(glances):
        first = number * pair.step
        if seen is None:
            add_block(sums, *pair.block(number), tolerance, scale, first_row=first)
            continue
        sums.count += seen.row_dd.size * pair.r.shape[1]
        sums.abs_d += seen.abs_d
        sums.dd += float(seen.row_dd.sum())
        sums.rr, sums.cc, sums.rc = sums.rr + seen.rr, sums.cc + seen.cc, sums.rc + seen.rc
        sums.row_l2.append(np.sqrt(seen.row_dd))
        sums.max_rel = max(sums.max_rel, seen.max_rel)
        if seen.max_abs > sums.max_abs:
            sums.max_abs, sums.worst_at = seen.max_abs, (first, -1)
    clean = {number: seen for number, seen in enumerate(glances) if seen is not None}
    assert sums.ulps is not None
    sums.ulps.add_counts([seen.ulps for seen in clean.values()], plan)
    _find_worst(sums, pair, tolerance, scale)
    _find_relative(sums, pair, clean)
    _find_exceeded(sums, pair, clean, tolerance, scale)
    _find_quantile(sums, pair)
    return scale


def _some_distances(pair: Pair, pieces: int = 64, length: int = 16) -> Array:
    """Distances of a few elements from all over the state, a cache line at a time."""
    r, c = pair.r.reshape(-1), pair.c.reshape(-1)
    if r.size > pieces * length:
        every, whole = r.size // length // pieces, r.size - r.size % length
        r, c = (x[:whole].reshape(-1, length)[::every] for x in (r, c))
    return ulp_distance(r.ravel(), c.ravel(), FORMATS["fp32"])


def _scale(glances: Iterable[Glance | None], pair: Pair, tolerance: Tolerance) -> float:
    """As `_rms` gives it, from the sums that are there already."""
    if tolerance.scale != "rms":
        return 1.0
    total, count = 0.0, 0
    for number, seen in enumerate(glances):
        if seen is not None:
            total, count = total + seen.rr, count + seen.row_dd.size * pair.r.shape[1]
        else:
            values = pair.block(number)[0]
            finite = values[np.isfinite(values)].astype(np.float64)
            total, count = total + float(np.vdot(finite, finite)), count + finite.size
    return math.sqrt(total / count) if count else 0.0


def _find_worst(sums: Sums, pair: Pair, tolerance: Tolerance, scale: float) -> None:
    """The first element of the block that holds the largest difference, and its allowance."""
    if sums.worst_at is not None and sums.worst_at[1] < 0:
        first = sums.worst_at[0]
        r, c = pair.block(first // pair.step)
        row, column = np.unravel_index(place_of(r, c, sums.max_abs), r.shape)
        sums.worst_at = (first + int(row), int(column))
        allowed = tolerance.atol * scale + tolerance.rtol * abs(float(r[row, column]))
        if allowed > 0:
            sums.exceeded = max(sums.exceeded, sums.max_abs / allowed)


def _find_relative(sums: Sums, pair: Pair, glances: dict[int, Glance]) -> None:
    """Look again at blocks that may hold a larger relative difference than is known."""
    order = sorted(glances, key=lambda n: -glances[n].rel_bound)
    for some in _batches(order):
        left = [n for n in some if glances[n].rel_bound > sums.max_rel]
        if not left:
            return
        found = in_threads(lambda n: largest_relative(*pair.block(n)), left)
        sums.max_rel = max(sums.max_rel, *found)


def _find_exceeded(
    sums: Sums, pair: Pair, glances: dict[int, Glance], tolerance: Tolerance, scale: float
) -> None:
    """Count elements beyond their allowance, and find how far the worst is beyond it."""
    floor = tolerance.atol * scale
    order = sorted(glances, key=lambda n: -glances[n].max_abs)
    for some in _batches(order):
        least = sums.exceeded
        left = [n for n in some if glances[n].max_abs > min(floor, least * floor)]
        if not left:
            return

        def look(number: int, least: float = least) -> tuple[int, float]:
            return beyond(*pair.block(number), floor, tolerance.rtol, least)

        found = in_threads(look, left)
        sums.mismatched += sum(count for count, _ in found)
        sums.exceeded = max(sums.exceeded, *(ratio for _, ratio in found))


def _batches(numbers: list[int]) -> Iterable[list[int]]:
    """One alone, which tells much about the rest; then as many as there are workers, and more."""
    start, size = 0, 1
    while start < len(numbers):
        yield numbers[start : start + size]
        start, size = start + size, 2 * workers()


def _find_quantile(sums: Sums, pair: Pair) -> None:
    """Count once more, all distances apart, where the sample was misleading."""
    if sums.ulps is None or sums.ulps.knows(0.99):
        return
    again = UlpHistogram(FORMATS["fp32"])
    for number in range(len(pair.blocks)):
        r, c = pair.block(number)
        finite = np.isfinite(r) & np.isfinite(c)
        again.add(r[finite], c[finite])
    sums.ulps = again
