"""From a trace to its signature, some elements at a time; quantiles take one state at a time.

Every sum is exact or correctly rounded, so that the same states give the same bytes on any machine:
elements are rounded to 40 bits below the largest, and what a block of them sums to then fits
a float64 in whole numbers, whatever the order in which a matrix product adds them up.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array
from ..states import Probe, State, Trace
from .state import QUANTILES, Moments, StateSignature
from .weights import COUNT, VARIANCE, places, weights

BITS = 40
BLOCK = 1024
"""Elements whose weighted sum is exact: 40 bits, 2 for the weight, 10 for the block."""

_CHUNK = 1 << 16
_MOST_INPUTS = 4096
"""Whole numbers of a probe that are kept: a few rows of ids and masks, no picture."""


@dataclass(frozen=True, eq=False)
class Elements:
    """The elements of a state that count, in order, without a copy of them all."""

    rows: Array
    numbers: NDArray[np.int64] | None
    """Of the rows that count; None where all do."""

    @classmethod
    def of(cls, state: State, probe: Probe) -> Elements:
        keep = probe.keep(state.point.name, state.shape)
        array = state.array
        if keep is None:
            return cls(array.reshape(1, array.size), None)
        return cls(array.reshape(keep.size, -1), np.flatnonzero(keep))

    @property
    def count(self) -> int:
        rows = len(self.rows) if self.numbers is None else len(self.numbers)
        return int(rows * self.rows.shape[1])

    def raw(self, start: int, stop: int) -> Array:
        """Some of them, in their own dtype."""
        if self.numbers is None:
            return self.rows.reshape(-1)[start:stop]
        width = self.rows.shape[1]
        first, last = start // width, -(-stop // width)
        found = self.rows[self.numbers[first:last]].reshape(-1)
        return found[start - first * width : stop - first * width]

    def finite(self, start: int, stop: int) -> NDArray[np.float64]:
        """Some of them as float64, zero where not finite."""
        values: NDArray[np.float64] = self.raw(start, stop).astype(np.float64)
        return np.where(np.isfinite(values), values, 0.0)

    def chunks(self, step: int = _CHUNK) -> Iterator[tuple[int, int]]:
        return ((at, min(at + step, self.count)) for at in range(0, self.count, step))


def sign_states(trace: Trace, seed: int) -> tuple[StateSignature, ...]:
    """What a signature says of each state of a trace."""
    with np.errstate(all="ignore"):
        parts = [Elements.of(state, trace.probe) for state in trace]
        moments = [_moments(part) for part in parts]
        units = [_unit(max(-m.min, m.max, 0.0)) for m, _ in moments]
        projected = _projections(parts, units, seed)
        return tuple(
            StateSignature(
                name=state.point.name,
                shape=tuple(int(size) for size in state.shape),
                dtype=state.dtype,
                sha256=_sha256(part),
                counted=part.count,
                nonfinite=bad,
                moments=found,
                quantiles=_quantiles(part),
                samples=_samples(part, seed),
                projections=values,
                unit=unit,
                module=state.point.module,
            )
            for state, part, (found, bad), values, unit in zip(
                trace, parts, moments, projected, units, strict=True
            )
        )


def _sha256(part: Elements) -> str:
    digest = hashlib.sha256()
    for start, stop in part.chunks():
        raw = part.raw(start, stop)
        digest.update(np.ascontiguousarray(raw.astype(raw.dtype.newbyteorder("<"))).tobytes())
    return digest.hexdigest()


def _moments(part: Elements) -> tuple[Moments, int]:
    """Moments, and how many elements are not finite; `fsum` rounds once, in whatever order."""
    sums: list[list[float]] = [[], [], []]
    lowest, highest, closest = math.inf, -math.inf, math.inf
    unit, count = _unit(_peak(part)) or 1.0, 0
    for start, stop in part.chunks():
        values: NDArray[np.float64] = part.raw(start, stop).astype(np.float64)
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        count += values.size
        lowest, highest = min(lowest, float(values.min())), max(highest, float(values.max()))
        size = np.abs(values)
        closest = min(closest, float(size.min()))
        scaled = size / unit
        for total, terms in zip(sums, (values / unit, scaled, scaled * scaled), strict=True):
            total.append(math.fsum(terms.tolist()))
    if not count:
        return Moments(0.0, 0.0, 0.0, 0.0, 0.0, 0.0), part.count
    mean, mean_abs, square = (math.fsum(total) / count for total in sums)
    found = Moments(
        mean * unit, mean_abs * unit, math.sqrt(square) * unit, lowest, highest, closest
    )
    return found, part.count - count


def _peak(part: Elements) -> float:
    return max(
        (float(np.abs(part.finite(*at)).max(initial=0.0)) for at in part.chunks()), default=0
    )


def _unit(peak: float) -> float:
    """The power of two to a multiple of which elements are rounded."""
    return math.ldexp(1.0, max(math.frexp(peak)[1], -980) - BITS) if peak else 0.0


def _projections(parts: list[Elements], units: list[float], seed: int) -> list[tuple[float, ...]]:
    """Every state projected on the same random directions, which are made once, block by block."""
    totals = [[0] * COUNT for _ in parts]
    longest = max((part.count for part in parts), default=0)
    for start in range(0, longest, BLOCK):
        drawn: NDArray[np.float64] | None = None
        for part, unit, total in zip(parts, units, totals, strict=True):
            stop = min(start + BLOCK, part.count)
            if stop <= start or not unit:
                continue
            if drawn is None or len(drawn) < stop - start:
                drawn = weights(start, min(start + BLOCK, longest), seed)
            whole = np.rint(part.finite(start, stop) / unit)
            found = (whole @ drawn[: stop - start]).tolist()
            for at, value in enumerate(found):
                total[at] += int(value)
    size = math.sqrt(VARIANCE)
    return [
        tuple(value * unit / size for value in map(float, total))
        for total, unit in zip(totals, units, strict=True)
    ]


def _quantiles(part: Elements) -> tuple[float, ...]:
    """Elements at fixed ranks, by selection and not by sums: the same everywhere."""
    values: NDArray[np.float64] = part.raw(0, part.count).astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return ()
    ranks = [math.floor(q * (values.size - 1)) for q in QUANTILES]
    found = np.partition(values, sorted(set(ranks)))
    return tuple(float(found[rank]) for rank in ranks)


def _samples(part: Elements, seed: int) -> tuple[float | None, ...]:
    drawn = (float(part.raw(at, at + 1)[0]) for at in places(part.count, seed).tolist())
    return tuple(value if math.isfinite(value) else None for value in drawn)


def few_inputs(probe: Probe) -> dict[str, tuple[int, ...]]:
    """All inputs, where they are whole numbers and few; else none."""
    arrays = probe.inputs.values()
    if any(a.dtype.kind not in "iub" for a in arrays) or sum(a.size for a in arrays) > _MOST_INPUTS:
        return {}
    return {name: tuple(int(v) for v in a.reshape(-1)) for name, a in probe.inputs.items()}
