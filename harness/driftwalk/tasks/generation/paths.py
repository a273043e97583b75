"""Each side's decoding against its own run on the whole sequence: is the cache to be trusted?"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import BackendError
from ...layer_drift import LayerDrift, Side
from ...measure.halves import widened
from ...names import is_of_cache, place_of
from ...states import Trace
from ..constants import TWO_PATHS_APART
from .cells import room_of, shares
from .result import Agreement, CachePath


def check_shapes(whole: Trace, decoded: Trace) -> None:
    """An error where the layers of a model do not give one state for each token when it decodes."""
    for state in whole.states:
        name, other = state.point.name, decoded.state(state.point.name)
        if other is None or place_of(name) is None or is_of_cache(name):
            continue
        if other.shape != state.shape:
            several = state.shape[:1] != (1,)
            hint = " If it can decode a single row, try --batch 1." if several else ""
            raise BackendError(
                f"{whole.backend.spec}: {name} has shape {other.shape} in decoding, and "
                f"{state.shape} in one run on the same tokens: with what is not one state for "
                f"each token, steps cannot be held against one run.{hint}"
            )


def cache_path(whole: Trace, decoded: Trace, rows: Iterable[LayerDrift], side: Side) -> CachePath:
    """How far the two runs of one side are apart, in units of what is allowed it."""
    used: dict[str, float] = {}
    equal = True
    for row in rows:
        name = row.point.name
        a, b = whole.state(name), decoded.state(name)
        allowed = row.sides.get(side, row.tolerance)
        if a is None or b is None or a.shape != b.shape or is_of_cache(name) or allowed is None:
            continue
        keep = whole.probe.keep(name, a.shape)
        with np.errstate(all="ignore"):
            off = np.abs(widened(a.array).astype(np.float64) - widened(b.array))
        equal = equal and not (off if keep is None else off[keep]).any()
        used[name] = float(shares(off, room_of(allowed, a.array), keep).max(initial=0.0))
    point = max(used, key=lambda name: used[name], default="")
    worst = used.get(point, 0.0)
    agreement: Agreement = "broken"
    if equal:
        agreement = "bit-exact"
    elif worst <= TWO_PATHS_APART:
        agreement = "within noise"
    return CachePath(agreement, worst, point)


def check_causal(whole: Trace, bare: Trace, rows: Iterable[LayerDrift]) -> None:
    """An error where all tokens at once are no truth: with a cache they see those after them."""
    apart = cache_path(whole, bare, rows, "reference")
    if apart.agreement == "broken":
        raise BackendError(
            f"{whole.backend.spec}: one run on all tokens gives something else at {apart.point} "
            "when the model is to keep a cache than when not: it has no causal mask then, and what "
            "its steps should give is not known. --cache none compares it."
        )


def differ(one: Trace, other: Trace) -> bool:
    """Whether two traces have a state that is not the same bit by bit."""
    both = ((state, other.state(state.point.name)) for state in one.states)
    return any(b is not None and not np.array_equal(a.array, b.array) for a, b in both)
