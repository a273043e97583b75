"""Outputs that are infinite on purpose: the scores of what a model has masked out.

Where both sides have the same infinity, nothing differs. NaN is never the same as anything.
"""

from __future__ import annotations

import numpy as np

from ..states import OUTPUT, State


def may_be_infinite(state: State) -> bool:
    """Whether a state is an output beside the main one; states inside a model are finite."""
    return state.point.name.startswith(OUTPUT)


def without_shared(reference: State, candidate: State) -> tuple[State, State, str]:
    """Both states with 0 where both have the same infinity, and a note that says how often."""
    r, c = reference.array, candidate.array
    with np.errstate(invalid="ignore"):
        same = np.isinf(r) & (r == c)
    count = int(np.count_nonzero(same))
    if not count:
        return reference, candidate, ""
    note = f"{count} elements are infinite on both sides alike"
    return (
        State(reference.point, np.where(same, np.zeros((), r.dtype), r)),
        State(candidate.point, np.where(same, np.zeros((), c.dtype), c)),
        note,
    )
