"""Reduction: the sums of a pair of states formed where both live, so that only numbers travel.

A backend that `Holds` leaves its states on their device. What it holds can be reduced there against
what another backend holds on the same device; the formulas that make metrics of sums stand once,
in metrics.py. A pair that a device cannot reduce (NaN, float64, ...) is fetched and measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, cast

import numpy as np

from ..adapter import Holds
from ..dtypes import FORMATS, Array
from ..states import Held, HeldState, State, Trace, read_only
from ..tolerance import Tolerance
from .metric_list import Numbers, Sums
from .metrics import Measured, finish, measure


@dataclass(frozen=True)
class Reduced:
    """What the rows of a pair that count came to. Only for pairs in which all is finite."""

    sums: Sums
    """Places are counted among the rows that count."""
    scale: float
    """What atol was multiplied with."""
    worst: tuple[float, float]
    """What the reference and the candidate have where they differ most."""


Reducing = Callable[[], Reduced | None]
"""Waits for a reduction that was begun; None where it met what a device leaves to the host."""


class Reduces(Protocol):
    """Something held that can be reduced against another on the same device."""

    def reduce(self, reference: Held, tolerance: Tolerance, rows: Array) -> Reducing | None:
        """Begin, and wait for nothing; None where these two cannot be reduced there."""


@contextmanager
def holding(reference: object, candidates: Sequence[object]) -> Iterator[bool]:
    """Have backends on the reference's device leave their states there; tells if there are any."""
    device = reference.holds_on if isinstance(reference, Holds) else ""
    near = [b for b in candidates if isinstance(b, Holds) and device and b.holds_on == device]
    together = [b for b in (reference, *near) if near and isinstance(b, Holds)]
    try:
        for backend in together:
            backend.hold(True)
        yield bool(together)
    finally:
        for backend in together:
            backend.hold(False)


def not_held(trace: Trace) -> tuple[str, ...]:
    """What to say of states that were to be left on a device, and found no room there."""
    floats = [state for state in trace if state.dtype in FORMATS]
    away = [state.point.name for state in floats if not isinstance(state, HeldState)]
    if not away:
        return ()
    return (
        f"{len(away)} of {len(trace)} reference states, from {away[0]} on, were copied to the host "
        f"and compared there: {trace.backend.device} had too little free memory to keep them.",
    )


def begin(
    reference: State, candidate: State, tolerance: Tolerance, keep: Array | None
) -> Callable[[], Measured] | None:
    """Begin to measure a pair on its device; None where both are to be measured here and now."""
    if not (isinstance(reference, HeldState) and isinstance(candidate, HeldState)):
        return None
    theirs, ours = reference.held, candidate.held
    if not hasattr(ours, "reduce"):  # asking for the protocol takes longer than reducing
        return None
    shape = ours.shape
    rows = _all(math.prod(shape[:-1][:2])) if keep is None else keep.reshape(-1).nonzero()[0]
    reducing = cast(Reduces, ours).reduce(theirs, tolerance, rows) if len(rows) else None
    if reducing is None:
        return None

    def measured() -> Measured:
        found = reducing()
        if found is None:
            return measure(reference.array, candidate.array, tolerance, keep)
        sums, worst = found.sums, found.worst
        assert sums.worst_at is not None
        row, column = sums.worst_at
        sums.worst_at = int(rows[row]), column
        return finish(sums, shape, rows, found.scale, lambda _: worst)

    return measured


@lru_cache(maxsize=16)
def _all(count: int) -> Numbers:
    """The numbers of so many rows."""
    return read_only(np.arange(count))
