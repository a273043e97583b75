"""What `verify` adds to a report when asked whether a drift matters.

contrast      each point's drift as a share of the distance between two inputs there
propagation   the candidate's own errors, carried through the truth's Jacobian
patching      the flips that go when one layer of the candidate is restored
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...adapter import Backend, BringsProbe, Replays, Sink
from ...dtypes import Array
from ...effects import Carried, Meaning, Patch, Patching, Propagation
from ...errors import BackendError, DriftwalkError, UsageError
from ...judge.drill import looking
from ...judge.outputs import OutputNames
from ...layer_drift import LayerDrift
from ...measure.norms import ratio
from ...meeting import Run
from ...names import LOGITS, is_output
from ...progress import Progress
from ...result import Report
from ...states import OUTPUT, Probe, State, Trace
from ...verification import Addition
from .contrast import distances, share_of
from .inputs import has_tokenizer, make_pair, read_pair

if TYPE_CHECKING:
    from driftwalk_backends.sources import LoadedModel
    from driftwalk_backends.torch_eager import TorchEager

States = dict[str, Array]


@dataclass(frozen=True)
class Effect(Addition):
    """A number that is nice to have: what cannot be done costs a note, not the report."""

    name: str
    refusal: str
    """What is said to whoever asks it of a graph."""
    measured: Callable[[Report, Backend, Run], Report]

    def refuse_graph(self) -> None:
        raise UsageError(self.refusal)

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        try:
            return self.measured(report, candidate, run)
        except (DriftwalkError, MemoryError) as error:
            note = f"{self.name} was not possible: {error}"
            return replace(report, notes=(*report.notes, note))


# ---- in units of meaning ----


class InUnitsOfMeaning(Addition):
    """Each point's drift as a share of the distance between two inputs there."""

    def __init__(self, pair: object) -> None:
        self._pair = pair
        self._unit = Meaning("", "", {}, {})

    def refuse_graph(self) -> None:
        raise UsageError("A contrast needs a torch model, for its tokenizer; this is a graph.")

    def begin(self, run: Run) -> None:
        self._unit = _unit(run.stage.torch_model, run.stage.backends[0], self._pair)

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        shares = {}
        for layer in report.layers:
            name = layer.point.name
            share = share_of(_drift_per_token(layer), self._unit.distances.get(name, 0.0))
            if share is not None and math.isfinite(share):
                shares[name] = share
        return replace(report, contrast=replace(self._unit, shares=shares))


def _unit(model: LoadedModel, backend: Backend, given: object) -> Meaning:
    """How far two inputs are apart on the reference; no shares yet."""
    if isinstance(backend, BringsProbe) and backend.own_probe is not None:
        raise UsageError(
            f"A contrast runs two more inputs on the reference, and {backend.spec} is a recording."
        )
    first, second = read_pair(given)
    if not has_tokenizer(model):
        first, second = (_as_ids(one) for one in (first, second))
    probes = make_pair(model, first, second)
    names = [probe.texts[0] if len(probe.texts) == 1 else probe.origin for probe in probes]
    return Meaning(names[0], names[1], distances(model, backend, probes), {})


def _as_ids(given: object) -> object:
    """`5 17 3` is a row of ids where there is no tokenizer that could read it."""
    if not isinstance(given, str) or not given.replace(",", " ").replace(" ", "").isdigit():
        return given
    return [[int(word) for word in given.replace(",", " ").split()]]


def _drift_per_token(layer: LayerDrift) -> float | None:
    """The root mean square of the tokens' errors; of rows, where a point has no tokens."""
    if layer.metrics is None or layer.verdict == "nonfinite":
        return None
    errors = [v for row in layer.tokens or () for v in row if v is not None]
    if errors:
        return math.sqrt(sum(v * v for v in errors) / len(errors))
    rows = layer.shape[0] if len(layer.shape) > 1 else 1
    return layer.metrics.rmse * math.sqrt(layer.metrics.total / max(1, rows))


# ---- predicted propagation ----


def propagation(
    truth: Backend, candidate: Backend, probe: Probe, source: str | None = None
) -> Propagation:
    """Predicted and measured inherited drift at every point.

    It needs of the candidate only its states. The truth runs four or five times: plain, on the
    candidate's states, and with two or three sets of tangents. `source` is a layer whose own error
    is also followed alone, to tell it from what others add.
    """
    from driftwalk_backends.torch_eager import TorchEager

    if not isinstance(truth, TorchEager):
        raise BackendError(f"{truth!r} has no derivatives.")
    start = time.perf_counter()
    with looking(candidate, "block"), looking(truth, "block"):
        exact = truth.trace(probe)
        given = _fitting(candidate.trace(probe), exact)
        made = _collected(lambda sink: truth.replay(probe, given, sink))
    points = [state.point.name for state in exact if state.point.name in given]
    if not points:
        raise BackendError("the candidate shares no state with the truth.")
    introduced = {name: _counted(probe, name, given[name] - made[name]) for name in points}
    error = {name: _counted(probe, name, given[name] - exact[name]) for name in points}
    followed = {name: introduced[name] for name in points if name == source}
    predicted = _tangents(truth, probe, introduced, add=True)
    step = _tangents(truth, probe, error, add=False)
    alone = _tangents(truth, probe, followed, add=True) if followed else {}
    layers = []
    for name in points:
        inherited = _counted(probe, name, made[name] - exact[name])
        layers.append(
            Carried(
                point=name,
                measured=_size(inherited),
                predicted=_size(predicted[name]),
                off=ratio(_size(predicted[name] - inherited), _size(inherited)),
                step=_size(step[name]),
                source=_size(alone[name]) if alone else 0.0,
                introduced=_size(introduced[name]),
            )
        )
    return Propagation(next(iter(followed), ""), tuple(layers), time.perf_counter() - start)


def _fitting(met: Trace, exact: Trace) -> States:
    """The candidate's states that can stand in the truth's place, in float64."""
    return {
        state.point.name: state.array.astype(np.float64)
        for state in met
        if (true := exact.state(state.point.name)) is not None
        and true.array.shape == state.array.shape
        and not state.point.name.startswith(OUTPUT)
    }


def _collected(run: Callable[[Sink], object]) -> States:
    """The states that a run hands on, by point."""
    states: States = {}
    run(lambda state: states.update({state.point.name: state.array}))
    return states


def _tangents(truth: TorchEager, probe: Probe, given: Mapping[str, Array], *, add: bool) -> States:
    """J_n d at every point, padding left out."""
    from driftwalk_backends.jacobians import carried

    made = _collected(lambda sink: carried(truth, probe, given, sink, add=add))
    return {name: _counted(probe, name, array) for name, array in made.items()}


def _counted(probe: Probe, name: str, array: Array) -> Array:
    """The array with padding set to zero: what stands there is nobody's error."""
    keep = probe.keep(name, array.shape)
    if keep is None:
        return array
    return np.where(keep.reshape(keep.shape + (1,) * (array.ndim - keep.ndim)), array, 0.0)


def _size(array: Array) -> float:
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(array.ravel()))


def _with_propagation(report: Report, candidate: Backend, run: Run) -> Report:
    carrying = "propagation: carrying the drift through the truth's Jacobian"
    with run.show.stage(carrying, extra=True):
        truth = run.witness.of(candidate).truth
        carried = propagation(truth, candidate, run.stage.probe, report.cause)
    return replace(report, propagation=carried)


# ---- patching: where errors stop mattering ----


def patching(
    reference: Trace, candidate: Backend, probe: Probe, show: Progress | None = None
) -> Patching:
    """The curve of one candidate; what cannot be patched is refused with the reason.

    A candidate that can be run with a state in place of its own (`Replays`, with one state given)
    is run once for each point. What comes before the point is then of no account, what comes after
    is the candidate's own: a fault in layer j flips decisions for every k < j and for none from j
    on.
    """
    show = show or Progress()
    if not isinstance(candidate, Replays):
        raise UsageError(
            f"{candidate.spec} cannot be run from a state in the middle: it hands its states out, "
            "but takes none in. Candidates of torch and emulated can."
        )
    true = reference.state(LOGITS)
    if true is None or true.array.ndim < 2:
        raise UsageError("the model has no logits, so no decision can flip.")
    known = OutputNames.of(reference)
    if not known.decides:
        raise UsageError(
            f"the model gives {known.names.get(LOGITS, 'states')}, no logits, so no decision can "
            "flip; what became of embeddings is in the report."
        )
    keep = probe.keep(LOGITS, true.array.shape)
    start = time.perf_counter()
    with looking(candidate, "block"):
        points, logits = _patched_run(candidate, probe, {})
        flips = flipped(true.array, logits, keep)
        patches = []
        for name in points if flips.any() else ():  # nothing flipped: nothing to bring back
            state = reference.state(name)
            if is_output(name) or state is None:
                continue
            with show.stage(f"patching: {name} restored", extra=True):
                _, patched = _patched_run(candidate, probe, {name: state.array})
            patches.append(Patch(name, int(flipped(true.array, patched, keep).sum())))
    seconds = time.perf_counter() - start
    return Patching(int(flips.size), int(flips.sum()), tuple(patches), seconds)


def _patched_run(candidate: Replays, probe: Probe, given: States) -> tuple[list[str], Array]:
    """The points of one run with those states in place of its own, and the logits it gave."""
    points: list[str] = []
    logits: list[Array] = []

    def keep(state: State) -> None:
        points.append(state.point.name)
        if state.point.name == LOGITS:
            logits.append(state.array)

    candidate.replay(probe, given, keep)
    if not logits:
        raise UsageError("the candidate gives no logits.")
    return points, logits[0]


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


def _with_patching(report: Report, candidate: Backend, run: Run) -> Report:
    curve = patching(run.trace, candidate, run.stage.probe, run.show)
    return replace(report, patching=curve)


PROPAGATION = Effect(
    "Propagation",
    "Propagation needs the derivatives of a torch model; this is a graph.",
    _with_propagation,
)
PATCHING = Effect(
    "Patching",
    "Patching puts states into a torch model; a graph takes none in.",
    _with_patching,
)
