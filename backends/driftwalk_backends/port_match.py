"""`map=auto`: which state of a port is which point, found by value; its names say nothing.

Points are taken in order of execution, and a port's states in the order in which it wrote them: a
match never goes back. What is not clearly the one (matching.py) has no partner, and is `missing`.
"""

from __future__ import annotations

from dataclasses import replace

from driftwalk.errors import UsageError
from driftwalk.states import Point, State, Trace

from .matching import Candidate, Pool, clear

AUTO = "auto"
FOUND = "value"

_LIMITS = {"fp64": 1e-3, "fp32": 1e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2, "fp8": 2e-1}
"""How far a state may be from the one expected, relatively, by the coarser dtype of both."""


def by_value(expected: Trace, port: Trace) -> Trace:
    """The port's states under the names of the points they are; what is no point is left out."""
    candidates = [
        Candidate(state.point.name, state.array, order, state.point.name)
        for order, state in enumerate(port)
    ]
    pool, last, found = Pool(candidates), 0, []
    for state in expected:
        name, array = state.point.name, state.array
        keep = expected.probe.keep(name, array.shape)

        def later(candidate: Candidate, last: int = last) -> bool:
            return candidate.order >= last

        limit = _limit(state, port, expected)
        hit = clear(pool.hits(array, keep, later), limit)
        if hit is None:
            continue
        last = hit.candidate.order
        found.append(State(Point(name, hit.candidate.name, FOUND), hit.array))
    if not found:
        raise UsageError(
            "map=auto found none of the points among the states by their values: is it the same "
            "model, and the same probe? A map.toml names them whatever their values are."
        )
    return replace(port, states=tuple(found))


def _limit(state: State, port: Trace, expected: Trace) -> float:
    names = (state.dtype, port.backend.dtype, expected.backend.dtype, *(s.dtype for s in port))
    return max((_LIMITS[name] for name in names if name in _LIMITS), default=1e-3)
