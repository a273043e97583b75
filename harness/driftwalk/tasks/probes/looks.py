"""Many inputs looked at in one run of each side: the rows of one batch, without a truth.

    quick   =   max over points of   |c - r| / ( atol * scale + rtol * |r| )
    reach   =   at each module of the reference, the largest number without its sign

A look says which of some probes are worth judging, and never that one drifts: a probe that is
judged is run alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np

from ...adapter import Backend, LooksInside, Prepares
from ...dtypes import FORMATS, Array, Format, format_of
from ...errors import DriftwalkError
from ...judge.drill import looking
from ...measure.halves import widened
from ...measure.metrics import exceeded_by_row
from ...states import Probe, State
from ...tolerance import Policy

TOKENS = 512
"""Tokens that are run at once, about ..."""
LEAST, MOST = 2, 32
"""... and probes."""
PER_TOKEN = 256
"""Numbers of an image or a sound that are counted as one token."""


@dataclass(frozen=True)
class Look:
    """What one probe came to."""

    quick: float
    """The largest difference of the two sides, in units of the tolerance that needs no truth."""
    reach: Mapping[str, float]
    """By point: the largest number of the reference."""


@dataclass(frozen=True)
class Looked:
    """Some probes looked at, and the module that each point was taken from."""

    looks: tuple[Look | None, ...]
    """None for a probe that a side does not take."""
    modules: Mapping[str, str]


def fit(inputs: Mapping[str, Array]) -> int:
    """How many probes like this one are run at once."""
    tokens = max((a.size for n, a in inputs.items() if n.endswith("ids")), default=0)
    floats = sum(a.size for a in inputs.values() if a.dtype.kind == "f")
    return min(max(TOKENS // max(1, tokens, floats // PER_TOKEN), LEAST), MOST)


def look_at(
    reference: Backend, candidate: Backend, probes: Sequence[Probe], policy: Policy
) -> Looked:
    """Both sides on all probes at once, or one by one where they are no rows of one batch."""
    batch = stacked(probes)
    if batch is not None:
        try:
            return _Pair(reference, candidate, policy).look(batch, len(probes))
        except DriftwalkError:
            if len(probes) == 1:
                return Looked((None,), {})
    each = [look_at(reference, candidate, [probe], policy) for probe in probes]
    modules = {name: path for one in each for name, path in one.modules.items()}
    return Looked(tuple(look for one in each for look in one.looks), modules)


def stacked(probes: Sequence[Probe]) -> Probe | None:
    """One probe whose rows are those of all; None where they do not fit together."""
    first = probes[0]
    if len(probes) == 1:
        return first
    if len({tuple(probe.forms()) for probe in probes}) > 1 or first.others:
        return None
    rows = {array.shape[:1] for array in first.inputs.values()}
    if len(rows) > 1 or () in rows or any(probe.kept is not None for probe in probes):
        return None
    joined = {name: np.concatenate([p.inputs[name] for p in probes]) for name in first.inputs}
    return Probe(joined, first.origin)


class _Pair:
    """Both sides run once on a batch of several probes."""

    def __init__(self, reference: Backend, candidate: Backend, policy: Policy) -> None:
        self._reference, self._candidate, self._policy = reference, candidate, policy

    def look(self, batch: Probe, count: int) -> Looked:
        if isinstance(self._candidate, Prepares):
            self._candidate.prepare(batch)
        met = {state.point.name: state for state in self._candidate.trace(batch)}
        if isinstance(self._reference, LooksInside):
            with suppress(DriftwalkError), looking(self._reference, "module"):
                return self._compared(batch, count, met)
        return self._compared(batch, count, met)

    def _compared(self, batch: Probe, count: int, met: Mapping[str, State]) -> Looked:
        """The reference run beside the states that the candidate gave."""
        formats = self._formats()
        quick, reach, modules = np.zeros(count), dict[str, Array](), dict[str, str]()

        def note(state: State) -> None:
            name, other = state.point.name, met.get(state.point.name)
            modules[name] = state.point.module
            rows = _rows(state, batch, count)
            if rows is None:
                return
            if rows.dtype.kind == "f":
                reach[name] = np.abs(rows).max(axis=1, initial=0.0)
            if other is not None:
                own = [one for s in (state, other) if (one := format_of(s.array)) is not None]
                tolerance = self._policy.tolerance(name, *own, *formats)
                theirs = _rows(other, batch, count) if other.shape == state.shape else None
                needed = inf if theirs is None else exceeded_by_row(rows, theirs, tolerance)
                np.maximum(quick, needed, out=quick)

        self._reference.stream(batch, note)
        looks = (
            Look(float(quick[n]), {k: float(v[n]) for k, v in reach.items() if isfinite(v[n])})
            for n in range(count)
        )
        return Looked(tuple(looks), modules)

    def _formats(self) -> list[Format]:
        """What the sides compute in: their states may be stored wider."""
        names = (side.info.dtype for side in (self._reference, self._candidate))
        return [FORMATS[name] for name in names if name in FORMATS]


def _rows(state: State, batch: Probe, count: int) -> Array | None:
    """A state with one row for each probe, padding set to zero; None where it has no rows."""
    shape = state.shape
    if not shape or not shape[0] or shape[0] % count:
        return None
    array = widened(state.array)
    keep = batch.keep(state.point.name, shape)
    if keep is not None:
        array = np.where(keep.reshape(*keep.shape, *[1] * (array.ndim - 2)), array, 0)
    return array.reshape(count, -1)
