"""Where errors stop mattering: restore one layer of the candidate, count the flips that go.

A candidate that can be run with a state in place of its own (`Replays`, with one state given) is
run once for each point. What comes before the point is then of no account, what comes after is the
candidate's own: a fault in layer j flips decisions for every k < j and for none from j on.
"""

from __future__ import annotations

import time

import numpy as np

from ...adapter import Backend, Replays
from ...dtypes import Array
from ...effects import Patch, Patching
from ...errors import UsageError
from ...judge.drill import looking
from ...names import is_output
from ...progress import Progress
from ...states import Probe, State, Trace

OUTPUT = "logits"


def patching(
    reference: Trace, candidate: Backend, probe: Probe, show: Progress | None = None
) -> Patching:
    """The curve of one candidate; what cannot be patched is refused with the reason."""
    show = show or Progress()
    if not isinstance(candidate, Replays):
        raise UsageError(
            f"{candidate.spec} cannot be run from a state in the middle: it hands its states out, "
            "but takes none in. Candidates of torch and emulated can."
        )
    true = reference.state(OUTPUT)
    if true is None or true.array.ndim < 2:
        raise UsageError("the model has no logits, so no decision can flip.")
    keep = probe.keep(OUTPUT, true.array.shape)
    start = time.perf_counter()
    with looking(candidate, "block"):
        points, logits = _run(candidate, probe, {})
        flips = flipped(true.array, logits, keep)
        patches = []
        for name in points if flips.any() else ():  # nothing flipped: nothing to bring back
            state = reference.state(name)
            if is_output(name) or state is None:
                continue
            with show.stage(f"patching: {name} restored", extra=True):
                _, patched = _run(candidate, probe, {name: state.array})
            patches.append(Patch(name, int(flipped(true.array, patched, keep).sum())))
    return Patching(
        positions=int(flips.size),
        flips=int(flips.sum()),
        patches=tuple(patches),
        seconds=time.perf_counter() - start,
    )


def _run(candidate: Replays, probe: Probe, given: dict[str, Array]) -> tuple[list[str], Array]:
    """The points of one run with those states in place of its own, and the logits it gave."""
    points: list[str] = []
    last: list[Array] = []

    def keep(state: State) -> None:
        points.append(state.point.name)
        if state.point.name == OUTPUT:
            last.append(state.array)

    candidate.replay(probe, given, keep)
    if not last:
        raise UsageError("the candidate gives no logits.")
    return points, last[0]


def flipped(reference: Array, candidate: Array, keep: Array | None) -> Array:
    """Which positions choose otherwise; a choice among NaN is no choice, and so another."""
    if reference.shape != candidate.shape:
        raise UsageError(
            f"the candidate's logits have shape {candidate.shape}, the reference's "
            f"{reference.shape}."
        )
    ours, theirs = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(ours).all(-1)
    other = (ours.argmax(-1) != theirs.argmax(-1)) | ~np.isfinite(theirs).all(-1)
    counted = finite if keep is None or keep.shape != finite.shape else finite & (keep != 0)
    chosen: Array = other[counted]
    return chosen
