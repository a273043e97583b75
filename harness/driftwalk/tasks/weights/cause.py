"""What `verify` adds to a drift report: whether a weight of the root cause is the cause.

The weights of the side at fault are compared with the model's: those of the root cause first, all
of them if the model is small. A weight is accused only if

    it lies in the root cause, and in the very module of it that was found guilty, if one was,
    it is off by more than rounding, and not only stored in another shape, and
    its like in a layer that did nothing wrong is not off in the same way: what sound layers have
    too (a port that stores matrices transposed, or heads in another order) is no fault
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...adapter import Backend, HasWeights
from ...dtypes import FORMATS
from ...layer_drift import LayerDrift, Side
from ...meeting import Run
from ...names import SHARED, place_of
from ...progress import Progress
from ...result import Report
from ...spec import Spec
from ...stage import Setting, is_graph
from ...verification import Addition
from ...weight_change import WeightChange, WeightFindings
from ...weight_source import WeightSource
from ..constants import (
    SAME_WEIGHT_ROUNDOFFS,
    SOUND_LAYERS,
    SOUND_TWIN_TIMES,
    WEIGHTS_COMPARED_WHOLE,
)
from .pairing import pair
from .run import change

if TYPE_CHECKING:
    from driftwalk_backends.onnx.graph import OnnxGraph


_MOST_KEPT = 20

Inside = Callable[[Report, Sequence[str]], list[str]]


class WeightsOfGuilty(Addition):
    """Weights of the side at fault, compared with the model's, where something drifted."""

    def add(self, report: Report, candidate: Backend, run: Run) -> Report:
        if report.verdict != "drift" or report.cause is None:
            return report
        wrong: Side = "reference" if report.at_fault == "reference" else "candidate"
        backend = run.stage.backends[0] if wrong == "reference" else candidate
        if not isinstance(backend, HasWeights):
            return report
        model = run.stage.torch_model
        with run.show.stage("weights of the root cause", extra=True):
            return _added(
                report,
                lambda: (model.own_weights(), backend.other_weights(model, run.stage.probe)),
                wrong,
                inside_of_module,
            )

    def finish(
        self, reports: list[Report], setting: Setting, sides: Sequence[object], show: Progress
    ) -> list[Report]:
        if not is_graph(setting.model):
            return reports
        first, *others = [_graph_of(side, setting.model) for side in sides]
        return [
            _of_graphs(report, first, other) if report.cause else report
            for report, other in zip(reports, others, strict=True)
        ]


def _graph_of(side: object, model: object) -> str | None:
    """The file of a graph that a side runs; None where that is not known."""
    if isinstance(side, str):
        return Spec.parse(side).options.get("file", str(getattr(model, "path", model)))
    path = getattr(side, "path", None)
    return None if path is None else str(path)


def _of_graphs(report: Report, first: str | None, other: str | None) -> Report:
    """The report on two files; one file run in two ways has the same weights."""
    if report.verdict != "drift" or first is None or other is None or first == other:
        return report
    from driftwalk_backends.weight_sources import open_graph, open_weights

    graph = open_graph(first)

    def inside(report: Report, names: Sequence[str]) -> list[str]:
        return inside_of_graph(report, names, graph)

    return _added(report, lambda: (open_weights(first), open_weights(other)), "candidate", inside)


def _added(
    report: Report,
    sources: Callable[[], tuple[WeightSource, WeightSource | None]],
    wrong: Side,
    inside: Inside,
) -> Report:
    """The report with what its weights say; what cannot be read costs a note, not the report."""
    try:
        first, other = sources()
        if other is None:
            return report
        return replace(report, weights=findings(report, first, other, wrong, inside))
    except Exception as error:  # a weight may be a tensor of any kind, and fail in any way
        note = f"The weights could not be compared: {error}"
        return replace(report, notes=(*report.notes, note))


def findings(
    report: Report, first: WeightSource, other: WeightSource, wrong: Side, inside: Inside
) -> WeightFindings | None:
    """What the weights of the root cause, and of a small model all, say of a drift."""
    suspects = inside(report, tuple(first.tensors))
    sound = _in_sound_layers(report, suspects, first.tensors)
    pairs = {one.name: one for one in pair(first, other)}
    wanted = [*suspects, *sound]
    if sum(math.prod(one.shape) for one in first.tensors.values()) <= WEIGHTS_COMPARED_WHOLE:
        wanted = list(dict.fromkeys((*wanted, *first.tensors)))
    changes = {n: change(pairs[n], first, other) for n in wanted if n in pairs}
    if not any(name in changes for name in suspects):
        return None
    accused = [n for n in suspects if n in changes and _accused(changes[n], changes, sound)]
    part, layer = report.culprit.module if report.culprit else "", report.root_cause
    if layer is not None and _within(part, layer.point.module):
        accused = [name for name in accused if _within(name, part)]
    accused.sort(key=lambda name: -changes[name].rel_l2)
    differing = [one for one in changes.values() if not one.ok]
    ranked = sorted(differing, key=lambda one: (one.name not in accused, one.name not in suspects))
    if accused:
        ranked = [changes[accused[0]], *(one for one in ranked if one.name != accused[0])]
    return WeightFindings(
        wrong,
        len(changes),
        sum(name in changes for name in suspects),
        sum(name not in changes for name in suspects),
        tuple(ranked[:_MOST_KEPT]),
        accused[0] if accused else "",
    )


def _accused(own: WeightChange, changes: Mapping[str, WeightChange], sound: Iterable[str]) -> bool:
    """Whether a weight is off, beyond rounding, and in a way in which no sound layer's is."""
    if own.verdict not in ("differs", "permuted", "transposed") or own.worst is None:
        return False
    # A model that runs with a matrix of another shape means to.
    if own.verdict == "transposed" and own.shapes[0] != own.shapes[1]:
        return False
    a, b = own.worst.reference, own.worst.candidate
    known = [
        FORMATS[d].roundoff for d in (own.dtypes.reference, own.dtypes.candidate) if d in FORMATS
    ]
    if abs(a - b) <= SAME_WEIGHT_ROUNDOFFS * max(known, default=0.0) * max(abs(a), abs(b)):
        return False
    twins = [changes[n] for n in sound if n in changes and _form(n) == _form(own.name)]
    # By content alone it may also be another weight, or one that something was folded into.
    by_half = own.matched == "content" and own.differing > own.total / 2
    if by_half and not any(one.ok for one in twins):
        return False
    return not any(
        one.verdict == own.verdict and own.rel_l2 <= SOUND_TWIN_TIMES * one.rel_l2 for one in twins
    )


def _form(name: str) -> str:
    """A name without its numbers: the same for one weight of all layers."""
    return re.sub(r"[0-9]+", "#", name)


def _within(name: str, module: str) -> bool:
    return bool(module) and name.startswith(f"{module}.")


def inside_of_module(report: Report, names: Sequence[str]) -> list[str]:
    """The weights that lie in the root cause: in its module, or on the way to it.

    Before the first layer and behind the last there may be weights in no point's module.
    """
    root = report.root_cause
    if root is None:
        return []
    own = [name for name in names if _within(name, root.point.module)]
    place = place_of(root.point.name)
    if own and place is not None and place.number is not None:
        return own
    layers = [row.point.module for row in report.layers if _is_layer(row)]
    in_layers = [any(_within(name, module) for module in layers) for name in names]
    outside = [name for name, within in zip(names, in_layers, strict=True) if not within]
    if root.point.name.startswith(f"{SHARED}.") or not any(in_layers):
        return outside
    if place is not None and place.end == "embed":
        before = set(names[: in_layers.index(True)])
        return [name for name in outside if name in before]
    behind = set(names[len(names) - in_layers[::-1].index(True) :])
    return own if place is not None and own else [name for name in outside if name in behind]


def _is_layer(row: LayerDrift) -> bool:
    place = place_of(row.point.name)
    return place is not None and place.number is not None


def _in_sound_layers(
    report: Report, suspects: Iterable[str], names: Iterable[str]
) -> tuple[str, ...]:
    """The like of the suspects in the nearest layers that made no error of their own."""
    root = report.root_cause
    if root is None:
        return ()
    rows = [row for row in report.layers if row.blame and not row.blame.guilty and _is_layer(row)]
    rows.sort(key=lambda row: (abs(row.index - root.index), row.index))
    forms = {_form(name) for name in suspects}
    modules = [row.point.module for row in rows[:SOUND_LAYERS]]
    return tuple(
        name
        for name in names
        if _form(name) in forms and any(_within(name, module) for module in modules)
    )


def inside_of_graph(report: Report, names: Sequence[str], graph: OnnxGraph) -> list[str]:
    """The initialisers that the root cause is computed from, and nothing before it that is ok."""
    from driftwalk_backends.onnx.structure import points_of

    tensors = {point.name: tensor for point, tensor in points_of(graph, "block").tensors.items()}
    cause = tensors.get(str(report.cause), str(report.cause))
    root = report.root_cause
    before = report.layers[: root.index] if root is not None else ()
    sound = [tensors.get(row.point.name, row.point.name) for row in before if row.ok]
    sound = [name for name in sound if name in graph.producers]
    found = []
    for name in names:
        made = [output for node in graph.takers(name) for output in node.outputs if output]
        if any(
            (one == cause or graph.depends(cause, one))
            and not any(one == other or graph.depends(other, one) for other in sound)
            for one in made
        ):
            found.append(name)
    return found if cause in graph.producers else []
