"""What all layers share, as suspects: a wrong rotary table or mask is no fault of layer 0.

Without more, blame hands the truth's blocks the truth's own tables, so that a wrong one shows as an
error that every layer introduces. Here the candidate's tables are looked at themselves, and those
that are wrong are handed to the truth's blocks as well:

    accused   <=>   |c_s - x_s| > YARDSTICKS * |y_s - x_s| + floor,  and with c_s in place of x_s
                    the layer that was blamed introduces less than half of what it did

The second condition spares whoever means the same by other numbers (rotary halves swapped).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from ..adapter import Backend, GivesShared
from ..layer_drift import Allowed, Blame, Culprit, Dtypes, LayerDrift
from ..measure.metrics import measure
from ..measure.norms import ZERO, distance
from ..names import layer_of, stack_of
from ..states import State, Trace
from ..tolerance import Tolerance
from .blame import blame
from .calibrate import Calibration
from .constants import SHARED_INPUT_GUILT, SHARED_INPUT_LEFT, YARDSTICKS
from .honest import allowed as allowance
from .honest import honest

UNSEEN = (
    "; every layer after it is guilty alike: suspect also what all layers share (rotary table, "
    "mask, relative positions), which could not be compared here"
)


@contextmanager
def sharing(*backends: Backend) -> Iterator[None]:
    """Have backends give what their blocks share, for a while; who cannot is left alone."""
    with ExitStack() as restore:
        for backend in backends:
            if isinstance(backend, GivesShared):
                backend.share(True)
                restore.callback(backend.share, False)
        yield


@dataclass(frozen=True, eq=False)
class Accused:
    """Shared inputs that are wrong and explain the blame, and the blame once they are known."""

    rows: tuple[LayerDrift, ...]
    blames: Mapping[str, Blame]
    before: str
    """The layer that first gets them."""
    culprit: Culprit

    @property
    def cause(self) -> str:
        return self.rows[0].point.name

    def among(self, layers: Iterable[LayerDrift]) -> tuple[LayerDrift, ...]:
        """All rows, in order of execution."""
        rows: list[LayerDrift] = []
        for layer in layers:
            rows += self.rows if layer.point.name == self.before else ()
            rows.append(layer)
        return tuple(replace(row, index=index) for index, row in enumerate(rows))


def guilty_alike(blames: Mapping[str, Blame], cause: str | None) -> bool:
    """Whether the cause is a layer, and most layers of its stack from there on are guilty too.

    And not by far less: on states that are off already, a sound layer may round more than usual.
    """
    if cause is None or layer_of(cause) != cause or cause not in blames:
        return False
    names = [n for n in blames if layer_of(n) == n and stack_of(n) == stack_of(cause)]
    following = names[names.index(cause) :]
    least = SHARED_INPUT_GUILT * _excess(blames[cause])
    guilty = [name for name in following if blames[name].guilty and _excess(blames[name]) >= least]
    return 2 * len(guilty) > len(following) > 1


def accuse_shared(
    truth: Backend,
    yardstick: Backend,
    calibration: Calibration,
    candidate: Trace,
    blames: Mapping[str, Blame],
    cause: str,
) -> tuple[Accused | None, str]:
    """The shared inputs behind a layer that was blamed; None where they are not at fault.

    And what to add to the sentence that blames the layer, where they could not all be compared.
    `candidate` was traced while it was `sharing`; `blames` and `cause` are as without it.
    """
    names = list(candidate.names)
    mine = [s for s in candidate.states[: names.index(cause)] if s.point.is_shared]
    if not mine:
        return None, UNSEEN
    with sharing(truth, yardstick):
        true, made = truth.trace(candidate.probe), yardstick.trace(candidate.probe)
        wrong = [row for state in mine if (row := _row(state, true, made, calibration))]
        limit = SHARED_INPUT_LEFT * _excess(blames[cause])
        for chosen in [wrong, *([row] for row in wrong if len(wrong) > 1)]:
            given = {row.point.name for row in chosen}
            kept = tuple(s for s in candidate if not s.point.is_shared or s.point.name in given)
            again = blame(truth, calibration, replace(candidate, states=kept))
            if chosen and _excess(again[cause]) < limit:
                first = names.index(chosen[0].point.name)
                before = next(s for s in candidate.states[first:] if not s.point.is_shared)
                found = Accused(tuple(chosen), again, before.point.name, _culprit(chosen[0]))
                return found, ""
    return None, UNSEEN if any(true.state(state.point.name) is None for state in mine) else ""


def _excess(one: Blame) -> float:
    return one.norms["introduced"].over(one.norms["allowed"])[0]


def _row(state: State, true: Trace, made: Trace, calibration: Calibration) -> LayerDrift | None:
    """A shared input as a row of the report, where it is beyond what honest arithmetic explains."""
    name = state.point.name
    exact, plain = true.state(name), made.state(name)
    if exact is None or exact.shape != state.shape:
        return None  # another implementation may share something else
    fits = plain is not None and plain.shape == exact.shape
    by = plain.array if plain is not None and fits else exact.array
    known = honest(by, exact.array, None, calibration.roundoff)
    error = distance(state.array, exact.array, weights=known.weights)
    allowed, yardstick = allowance(known), known.noise
    needed, norm = error.over(allowed)
    if needed <= 1:
        return None
    measured = measure(exact.array, state.array, Tolerance(allowed.max_abs))
    norms = {"introduced": error, "inherited": ZERO, "yardstick": yardstick, "allowed": allowed}
    return LayerDrift(
        state.point,
        0,
        state.shape,
        Dtypes(exact.dtype, state.dtype),
        "drift",
        measured.metrics,
        Allowed(allowed.max_abs, 0.0, 1.0, needed, YARDSTICKS, norm),
        blame=Blame(error.l2, 0.0, 0.0, error.over(yardstick)[0], True, norms),
        note="what layers share is compared with the truth",
    )


def _culprit(row: LayerDrift) -> Culprit:
    assert row.tolerance is not None
    ratio, metrics = YARDSTICKS * row.tolerance.needed, row.metrics
    where = ""
    if metrics is not None:
        where = f": {metrics.mismatched} of {metrics.total} elements are off"
    name = row.point.name
    sentence = f"{name}: wrong itself, and layers are handed it beside the stream{where}"
    return Culprit(row.point.module, ratio, None, None, sentence)
