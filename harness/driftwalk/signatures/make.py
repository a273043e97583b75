"""What a signature says of a state, and how it comes of a trace, some elements at a time.

Every sum is exact or correctly rounded, so that the same states give the same bytes on any machine:
elements are rounded to 40 bits below the largest, and what a block of them sums to then fits
a float64 in whole numbers, whatever the order in which a matrix product adds them up.

Random numbers are the same on every machine and in every version of numpy, too: splitmix64 of a
counter gives 64 bits; eight bits make one weight: how many of them are set, less four. Such a
weight is the sum of eight fair signs, halved: a whole number from -4 to 4, of mean 0 and variance
2, near enough to a Gaussian for the bounds of bounds.py, and exact in any arithmetic.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dtypes import Array, Float64
from ..states import Point, Probe, State, Trace

QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
COUNT, VARIANCE = 64, 2.0
"""Projections of a state, and the variance of a weight."""
SAMPLES = 32
"""Elements of a state that are kept as they are."""

BITS, BLOCK = 40, 1024
"""Elements whose weighted sum is exact: 40 bits, 2 for the weight, 10 for the block."""
_CHUNK = 1 << 16
_MOST_INPUTS = 4096
"""Whole numbers of a probe that are kept: a few rows of ids and masks, no picture."""

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_TABLE = np.array([byte.bit_count() - 4 for byte in range(256)], np.float64)
_SAMPLING = 0x5EED


@dataclass(frozen=True)
class Moments:
    """Of the finite elements that count."""

    mean: float
    mean_abs: float
    rms: float
    min: float
    max: float
    min_abs: float


@dataclass(frozen=True)
class StateSignature:
    """One state without its tensor. Padded positions are no part of any of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str
    """Of the bytes of the elements that count, little-endian."""
    counted: int
    nonfinite: int
    """How many of those are NaN or infinite; they are kept out of all that follows."""
    moments: Moments
    quantiles: tuple[float, ...]
    """At QUANTILES: elements, not values between two of them."""
    samples: tuple[float | None, ...]
    """The elements at seeded places; None where one is not finite."""
    projections: tuple[float, ...]
    unit: float
    """Every element was rounded to a multiple of this before it was projected."""
    module: str = ""

    @property
    def point(self) -> Point:
        return Point(self.name, self.module)

    @property
    def l2(self) -> float:
        return self.moments.rms * float(np.sqrt(max(0, self.counted - self.nonfinite)))


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

    def finite(self, start: int, stop: int) -> Float64:
        """Some of them as float64, zero where not finite."""
        values: Float64 = self.raw(start, stop).astype(np.float64)
        return np.where(np.isfinite(values), values, 0.0)

    def chunks(self) -> Iterator[tuple[int, int]]:
        return ((at, min(at + _CHUNK, self.count)) for at in range(0, self.count, _CHUNK))


def sign_states(trace: Trace, seed: int) -> tuple[StateSignature, ...]:
    """What a signature says of each state of a trace."""
    with np.errstate(all="ignore"):
        parts = [Elements.of(state, trace.probe) for state in trace]
        units = [_unit(_peak(part)) for part in parts]
        projected = _projections(parts, units, seed)
        return tuple(
            StateSignature(
                name=state.point.name,
                shape=tuple(int(size) for size in state.shape),
                dtype=state.dtype,
                sha256=_sha256(part),
                counted=part.count,
                nonfinite=bad,
                moments=moments,
                quantiles=_quantiles(part),
                samples=_samples(part, seed),
                projections=values,
                unit=unit,
                module=state.point.module,
            )
            for state, part, values, unit in zip(trace, parts, projected, units, strict=True)
            for moments, bad in (_moments(part, unit or 1.0),)
        )


def _sha256(part: Elements) -> str:
    digest = hashlib.sha256()
    for start, stop in part.chunks():
        raw = part.raw(start, stop)
        digest.update(np.ascontiguousarray(raw.astype(raw.dtype.newbyteorder("<"))).tobytes())
    return digest.hexdigest()


def _moments(part: Elements, unit: float) -> tuple[Moments, int]:
    """Moments, and how many elements are not finite; `fsum` rounds once, in whatever order."""
    sums: list[list[float]] = [[], [], []]
    lowest, highest, closest = math.inf, -math.inf, math.inf
    count = 0
    for start, stop in part.chunks():
        values: Float64 = part.raw(start, stop).astype(np.float64)
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
    sizes = (mean * unit, mean_abs * unit, math.sqrt(square) * unit)
    return Moments(*sizes, lowest, highest, closest), part.count - count


def _peak(part: Elements) -> float:
    peaks = (np.abs(part.finite(*at)).max(initial=0.0) for at in part.chunks())
    return float(max(peaks, default=0.0))


def _unit(peak: float) -> float:
    """The power of two to a multiple of which elements are rounded."""
    return math.ldexp(1.0, max(math.frexp(peak)[1], -980) - BITS) if peak else 0.0


def _projections(parts: list[Elements], units: list[float], seed: int) -> list[tuple[float, ...]]:
    """Every state projected on the same random directions, which are made once, block by block."""
    totals = [[0] * COUNT for _ in parts]
    longest = max((part.count for part in parts), default=0)
    for start in range(0, longest, BLOCK):
        drawn: Float64 | None = None
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
    values: Float64 = part.raw(0, part.count).astype(np.float64)
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
    if probe.others:
        return {}
    if any(a.dtype.kind not in "iub" for a in arrays) or sum(a.size for a in arrays) > _MOST_INPUTS:
        return {}
    return {name: tuple(int(v) for v in a.reshape(-1)) for name, a in probe.inputs.items()}


def _mixed(counters: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """splitmix64: what stands at these places of the stream of a seed."""
    with np.errstate(over="ignore"):
        z = (counters + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(seed & _MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def weights(start: int, stop: int, seed: int) -> Float64:
    """The weights of elements `start` to `stop`: one row each, one column per projection."""
    words = COUNT // 8
    counters = np.arange(start * words, stop * words, dtype=np.uint64)
    raw: NDArray[Any] = _mixed(counters, seed).astype("<u8").view(np.uint8)
    drawn: Float64 = _TABLE[raw].reshape(stop - start, COUNT)
    return drawn


def places(counted: int, seed: int) -> NDArray[np.int64]:
    """Where the samples of a state stand among the elements that count; some may be one."""
    if not counted:
        return np.zeros(0, np.int64)
    drawn = _mixed(np.arange(SAMPLES, dtype=np.uint64), seed ^ _SAMPLING)
    return (drawn % np.uint64(counted)).astype(np.int64)
