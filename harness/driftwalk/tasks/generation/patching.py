"""Which layer's drift parts the two sides: the candidate decodes once more for each point, with the
reference's states there, up to the step where they part.

What comes before the point is then of no account, in every step; what comes after is the
candidate's own, and so is what its caches keep of it. A fault in layer j parts the sides for every
k < j and for none from j on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...adapter import Backend, Restores
from ...decoding import Decoding
from ...dtypes import Array
from ...effects import Patch, Patching
from ...errors import UsageError
from ...measure.halves import widened
from ...names import LOGITS, is_of_cache, is_output
from ...progress import Progress
from ...states import Probe, State, Trace
from .prompt import cut_to


def patched(
    reference: Trace, candidate: Backend, plan: Decoding, end: int, show: Progress
) -> Patching:
    """The rows that still choose otherwise, for each point, once so many tokens were fed."""
    if not isinstance(candidate, Restores):
        raise UsageError(
            f"{candidate.spec} hands its states out, but takes none in. Candidates of torch and "
            "emulated do."
        )
    if plan.beams is not None or plan.rejected:
        raise UsageError("beams change places, and drafted tokens are taken back.")
    start, logits = time.perf_counter(), reference.state(LOGITS)
    if logits is None:
        raise UsageError("the reference gives no logits.")
    runs = sum(until <= end for _, until in plan.steps(end))
    short = replace(plan, chunks=plan.chunks[:runs])
    probe, ours = cut_to(reference.probe, end), _choices(logits.array[:, end - 1])

    def flips(given: Mapping[str, Array]) -> tuple[list[str], int]:
        points, theirs = _run(candidate, probe, short, given)
        return points, int((ours != theirs).sum())

    points, before = flips({})
    patches = []
    for name in points:
        state = reference.state(name)
        if is_output(name) or is_of_cache(name) or state is None:
            continue
        with show.stage(f"patching: {name} restored", extra=True):
            patches.append(Patch(name, flips({name: state.array})[1]))
    return Patching(len(ours), before, tuple(patches), time.perf_counter() - start)


def _run(
    candidate: Restores, probe: Probe, plan: Decoding, given: Mapping[str, Array]
) -> tuple[list[str], Array]:
    """The points of one decoding, and what it chooses after its last step."""
    points: list[str] = []
    found: list[Array] = []

    def keep(state: State) -> None:
        points.append(state.point.name)
        if state.point.name == LOGITS:
            found.append(_choices(state.array[:, -1]))

    candidate.restored(probe, plan, given, keep)
    if not found:
        raise UsageError("the candidate gives no logits.")
    return points, found[0]


def _choices(logits: Array) -> Array:
    """The likeliest token, row by row; among NaN there is none."""
    wide = widened(logits).astype(np.float64)
    best: Array = np.where(np.isnan(wide).any(-1), -1, wide.argmax(-1))
    return best
