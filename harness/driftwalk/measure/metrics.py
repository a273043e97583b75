"""The numbers of one pair of states, in one blocked pass with float64 accumulators.

Both sides are upcast before they are subtracted. Non-finite elements are counted first and kept
out of every other number, so that NaN can never make a sum or a comparison look harmless.
This is the plain way, for any dtype; pairs of float32 have a fused one (fused.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..dtypes import Array, Float64, format_of
from ..tolerance import Tolerance
from .fused import add_fused, usable
from .metric_list import METRICS, Metrics, Nonfinite, Numbers, Pair, Sums, Worst
from .norms import row_sizes
from .tokens import TokenErrors, profile
from .ulp import UlpHistogram

BLOCK = 1 << 15
"""Elements per block: two blocks and their temporaries stay in a core's cache."""

Values = Callable[[tuple[int, ...]], tuple[float, float]]
"""What stands on both sides at an index."""


@dataclass(frozen=True)
class Measured:
    """Metrics, and what a judge and a report need beside them."""

    metrics: Metrics
    scale: float
    """What atol was multiplied with."""
    exceeded: float
    """Largest |difference| / allowance: above 1 is drift, and times the tolerance would pass."""
    tokens: TokenErrors | None


def measure(
    reference: Array, candidate: Array, tolerance: Tolerance, keep: Array | None = None
) -> Measured:
    """Measure one pair of equal shape; `keep` marks the (row, position) pairs that count."""
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {candidate.shape}")
    shape = reference.shape
    r_rows, c_rows = _as_rows(reference), _as_rows(candidate)
    rows = np.flatnonzero(keep) if keep is not None else np.arange(len(r_rows))
    pair = Pair(r_rows, c_rows, rows)
    sums = Sums()
    scale = (add_fused if usable(pair) else _add_plainly)(sums, pair, tolerance)
    return finish(sums, shape, rows, scale, lambda at: (float(reference[at]), float(candidate[at])))


def finish(
    sums: Sums, shape: tuple[int, ...], rows: Numbers, scale: float, values: Values
) -> Measured:
    """Metrics from sums, wherever those were formed; `rows` are the numbers of those that count."""
    width = _width(shape)
    metrics = Metrics(
        **{metric.name: metric.formula(sums) for metric in METRICS},
        mismatched=sums.mismatched,
        total=rows.size * width,
        nonfinite=Nonfinite(sums.bad_reference, sums.bad_candidate),
        worst=_worst(sums, shape, width, values),
    )
    return Measured(metrics, scale, sums.exceeded, profile(sums.row_l2, rows, shape))


def exceeded_by_row(reference: Array, candidate: Array, tolerance: Tolerance) -> Float64:
    """What `measure` gives as `exceeded`, for each row as if it were alone.

    What differs and is no number, or whole numbers that differ, need a tolerance without limit.
    """
    if reference.dtype.kind != "f" or candidate.dtype.kind != "f":
        return np.where((reference == candidate).all(axis=1), 0.0, np.inf)
    with np.errstate(all="ignore"):
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        scale = np.ones((len(reference), 1))
        if tolerance.scale == "rms":
            squares = np.square(reference, dtype=np.float64)
            scale = np.sqrt(np.mean(squares, axis=1, keepdims=True))
        room = tolerance.atol * scale + tolerance.rtol * np.abs(reference, dtype=np.float64)
        off = np.abs(np.subtract(reference, candidate, dtype=np.float64))
        needed = np.where(same, 0.0, off / room)
    most: Float64 = np.where(np.isnan(needed), np.inf, needed).max(axis=1, initial=0.0)
    return most


def _as_rows(array: Array) -> Array:
    """(B, T, ...) as B*T rows; (B, C) as B rows; anything smaller as one row."""
    leading = math.prod(array.shape[:-1][:2])
    return array.reshape(leading, -1) if array.size else array.reshape(leading, 0)


@lru_cache(maxsize=64)
def _width(shape: tuple[int, ...]) -> int:
    """How long a row is."""
    return math.prod(shape) // max(1, math.prod(shape[:-1][:2]))


@np.errstate(all="ignore")
def _add_plainly(sums: Sums, pair: Pair, tolerance: Tolerance) -> float:
    """Pairs of any dtype, block by block; gives the scale."""
    step = max(1, BLOCK // max(1, pair.r.shape[1]))
    blocks = [pair.rows[start : start + step] for start in range(0, len(pair.rows), step)]
    if np.float64 in (pair.r.dtype, pair.c.dtype):  # squares of all else fit
        r_peak, c_peak = _peak(pair.r, blocks), _peak(pair.c, blocks)
        sums.r_unit, sums.c_unit = _unit(r_peak), _unit(c_peak)
        sums.d_unit = _unit(max(r_peak, c_peak))
    scale = _rms(pair.r, blocks, sums.r_unit) if tolerance.scale == "rms" else 1.0
    known, ulps = format_of(pair.c), UlpHistogram()
    for block in blocks:
        r, c = pair.r[block], pair.c[block]
        finite = _add_block(sums, r, c, tolerance, scale, block)
        if known is not None:
            ulps.add(r[finite], c[finite], known)
    if known is not None:
        sums.ulp_max, sums.ulp_p99 = ulps.max, ulps.quantile(0.99)
    return scale


def _peak(rows: Array, blocks: list[Numbers]) -> float:
    """Largest magnitude of the finite elements that count."""
    peak = 0.0
    for block in blocks:
        values = np.abs(rows[block].astype(np.float64, copy=False))
        highest = float(np.max(values, initial=0.0))
        if not math.isfinite(highest):
            highest = float(np.max(values, where=np.isfinite(values), initial=0.0))
        peak = max(peak, highest)
    return peak


def _unit(peak: float) -> float:
    """1; or a power of two near `peak`, where squares would leave the range of float64."""
    if peak == 0 or 1e-130 < peak < 1e130:
        return 1.0
    return 2.0 ** max(-1000, min(1000, math.frexp(peak)[1]))


def _rms(rows: Array, blocks: list[Numbers], unit: float) -> float:
    """Root mean square of the finite elements that count."""
    total, count = 0.0, 0
    for block in blocks:
        values = _in_units(rows[block].astype(np.float64, copy=False), unit)
        squares = float(np.vdot(values, values))
        if not math.isfinite(squares):
            values = values[np.isfinite(values)]
            squares = float(np.vdot(values, values))
        total, count = total + squares, count + values.size
    return unit * math.sqrt(total / count) if count else 0.0


def largest_ratio(top: Float64, bottom: Float64) -> float:
    """max(top / bottom), with 0/0 = 0 and x/0 = inf."""
    ratio = np.divide(top, bottom, out=np.where(top > 0, np.inf, 0.0), where=bottom > 0)
    return float(ratio.max(initial=0.0))


def _in_units(values: Float64, unit: float) -> Float64:
    return values if unit == 1.0 else values / unit


def _add_block(
    sums: Sums, r_raw: Array, c_raw: Array, tolerance: Tolerance, scale: float, numbers: Numbers
) -> Array:
    """Add a block of rows, those numbered `numbers`; gives where both sides are finite."""
    r: Float64 = r_raw.astype(np.float64)
    c: Float64 = c_raw.astype(np.float64)
    r_finite, c_finite = np.isfinite(r), np.isfinite(c)
    finite = r_finite & c_finite
    clean = bool(finite.all())
    if not clean:
        sums.bad_reference += int(r.size - np.count_nonzero(r_finite))
        sums.bad_candidate += int(c.size - np.count_nonzero(c_finite))
        sums.bad_reference_at = sums.bad_reference_at or _first_false(r_finite, numbers)
        sums.bad_candidate_at = sums.bad_candidate_at or _first_false(c_finite, numbers)
        sums.exceeded = math.inf  # no tolerance would let it pass
        r, c = np.where(finite, r, 0.0), np.where(finite, c, 0.0)

    d = c - r
    a = np.abs(d)
    r_abs = np.abs(r)
    sums.count += int(np.count_nonzero(finite)) if not clean else a.size
    if a.size:
        at = int(np.argmax(a))
        if float(a.flat[at]) > sums.max_abs:
            row, column = np.unravel_index(at, a.shape)
            sums.max_abs = float(a.flat[at])
            sums.worst_at = (int(numbers[row]), int(column))
        sums.max_rel = max(sums.max_rel, largest_ratio(a, r_abs))
        allowed = tolerance.atol * scale + tolerance.rtol * r_abs
        sums.exceeded = max(sums.exceeded, largest_ratio(a, allowed))
        sums.mismatched += int(np.count_nonzero(a > allowed)) + int(np.count_nonzero(~finite))

    if sums.d_unit != 1.0:
        d = c / sums.d_unit - r / sums.d_unit
        a = np.abs(d)
    r, c = _in_units(r, sums.r_unit), _in_units(c, sums.c_unit)
    sums.abs_d += float(a.sum())
    sums.rr += float(np.vdot(r, r))
    sums.cc += float(np.vdot(c, c))
    sums.rc += float(np.vdot(r, c))
    per_row = (d * d).sum(axis=1)
    sums.dd += float(per_row.sum())
    if not clean:
        per_row[~finite.all(axis=1)] = math.inf  # a token with NaN is not a token without error
    sums.row_l2.append(np.sqrt(per_row) * sums.d_unit)
    return finite


def _first_false(flags: Array, numbers: Numbers) -> tuple[int, int] | None:
    at = int(np.argmin(flags))
    row, column = np.unravel_index(at, flags.shape)
    return None if flags.flat[at] else (int(numbers[row]), int(column))


def _worst(sums: Sums, shape: tuple[int, ...], width: int, values: Values) -> Worst | None:
    # The candidate's own first; else where the reference is the one that is not finite.
    at = sums.bad_candidate_at or sums.bad_reference_at or sums.worst_at
    if at is None:
        return None
    left, index = at[0] * width + at[1], []
    for side in reversed(shape):
        left, place = divmod(left, side)
        index.append(place)
    found = tuple(reversed(index))
    return Worst(found, *values(found))


def token_errors(a: Array, b: Array, keep: Array | None = None) -> TokenErrors | None:
    """The error of each token alone; None for a state that has no token axis."""
    a_rows, b_rows = _as_rows(a), _as_rows(b)
    rows = np.flatnonzero(keep) if keep is not None else np.arange(len(a_rows))
    errors = row_sizes(a_rows, b_rows, keep)
    return profile([np.where(np.isfinite(errors), errors, math.inf)], rows, a.shape)
