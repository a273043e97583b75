"""From a candidate and a guilty point to what a search makes smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import Backend
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Probe

from ..loaded import LoadedModel
from ..onnx.backend import OnnxBackend, Sessions
from ..onnx.graph import COPIES, OnnxGraph
from ..onnx.pairs.probe import fed
from ..onnx.pairs.runtime import GraphRuntime, graphs_of
from ..onnx.structure import points_of
from ..onnx.wide.truth import GraphTruth
from ..other_way import other_way
from ..torch_compiled import TorchCompiled
from ..torch_runtime import TorchRuntime
from .graphs import GraphSubject
from .regions import start_of
from .right import GIVEN, Made, Right, torch_tensors
from .states import State
from .torch_opening import module_subject


@dataclass(frozen=True, eq=False)
class Walked:
    """A graph, what it is fed, and which of its tensors are states of points."""

    graph: OnnxGraph
    feed: Mapping[str, Any]
    tensors: Mapping[str, str]


def walked_graph(candidate: OnnxBackend, probe: Probe, point: str) -> Walked:
    """The graph of a candidate that makes a point."""
    if isinstance(candidate, GraphRuntime):
        points = points_of(candidate.model_graph, candidate.looks_at[0])
        own = candidate.partners
        tensors = {p.name: own[t][0] for p, t in points.tensors.items() if t in own}
        tensors |= {name: name for name in candidate.graph.producers if name not in tensors}
        return Walked(candidate.graph, candidate.feed(probe), tensors)
    for one in graphs_of(candidate, probe):
        if point in one.points:
            return Walked(one.model.graph, dict(one.probe.inputs), one.points)
    raise BackendError(f"No graph of {candidate.spec} is known to make {point}.")


def graph_subject(
    candidate: OnnxBackend, probe: Probe, point: str, truth: Backend | None
) -> tuple[GraphSubject, State]:
    """What a candidate's graph has to show at a point; `truth` is of the torch model."""
    walked = walked_graph(candidate, probe, point)
    if point not in walked.tensors:
        raise BackendError(f"No tensor of the graph is known to be {point}.")
    sessions = Sessions(candidate.spec, "the reduced graph", {})
    before = _before(walked, point)
    states = _states(sessions, walked, before)
    right, true = None, {}
    if truth is not None:
        right = Right(torch_tensors(truth, probe))
        shapes = {name: array.shape for name, array in states.items()}
        true = {
            state.point.name: state.array.reshape(shapes[state.point.name])
            for state in truth.trace(probe)
            if state.array.size == _count(shapes.get(state.point.name))
        }
    elif isinstance(candidate, GraphRuntime) and candidate.graph is not candidate.model_graph:
        right, true = _of_other_graph(candidate, probe, {n: a.shape for n, a in states.items()})
    return start_of(walked.graph, walked.feed, walked.tensors, point, states, true, right, sessions)


def _of_other_graph(
    candidate: GraphRuntime, probe: Probe, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Right, dict[str, Array]]:
    """The model is a graph, too: its tensors in float64 are right."""
    graph = candidate.model_graph
    feed = fed(graph.path.name, graph.inputs, probe.inputs)
    wide = GraphTruth(graph, feed).tensors(list(graph.producers))
    numbers: dict[str, int] = {}
    made: list[Made] = []
    arrays = {**{name: graph.stored(name) for name in graph.weights}, **feed}
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            numbers[name] = len(made)
            made.append(Made(GIVEN, array.astype(np.float64).ravel(), ()))
    for node in graph.nodes:
        of = tuple(numbers[name] for name in node.inputs if name in numbers)
        for name in node.outputs:
            if name in wide:
                numbers[name] = len(made)
                op = "view" if node.op in COPIES else node.op
                made.append(Made(op, wide[name].ravel(), of))
    tensors = points_of(graph, candidate.looks_at[0]).tensors
    named = {point.name: tensor for point, tensor in tensors.items()}
    named |= {name: name for name in wide if name not in named}
    true = {
        point: wide[tensor].reshape(shapes[point])
        for point, tensor in named.items()
        if tensor in wide and wide[tensor].size == _count(shapes.get(point))
    }
    return Right(made), true


def _count(shape: tuple[int, ...] | None) -> int:
    return -1 if shape is None else int(np.prod(shape))


def _before(walked: Walked, point: str) -> dict[str, str]:
    """Points whose tensors the guilty one may be computed from, and itself."""
    own = walked.tensors[point]
    return {
        name: tensor
        for name, tensor in walked.tensors.items()
        if tensor == own or walked.graph.depends(own, tensor)
        if not name.startswith("output.") or tensor == own
    }


def _states(sessions: Sessions, walked: Walked, tensors: Mapping[str, str]) -> dict[str, Array]:
    """What the candidate has at points, as its graph lays them out."""
    names = list(dict.fromkeys(tensors.values()))
    session = sessions.of_bytes(walked.graph.exposing(names), walked.graph.path.parent)
    given = sessions.ask(session, names, walked.feed, Path(walked.graph.path).name)
    arrays = {name: np.asarray(given[name]) for name in names}
    return {p: arrays[t] for p, t in tensors.items() if arrays[t].dtype.kind == "f"}


def subject_of(
    candidate: Backend, probe: Probe, point: str, truth: Backend | None
) -> tuple[GraphSubject, State]:
    """What is made smaller, and what it is at first; refused where nothing can be taken out."""
    if isinstance(candidate, OnnxBackend):
        return graph_subject(candidate, probe, point, truth)
    if isinstance(candidate, TorchRuntime):
        return module_subject(candidate, probe, point, truth)
    raise BackendError(
        f"backend {candidate.info.name!r} keeps its layers to itself: nothing can be taken out."
    )


def why_another_shape(candidate: Backend, model: Any, probe: Probe) -> str:
    """What in the model's own code leads to states of another shape, if that can be said."""
    as_it_is = isinstance(candidate, TorchRuntime) and not isinstance(candidate, TorchCompiled)
    if as_it_is or not isinstance(model, LoadedModel):
        return ""
    return other_way(model, probe)
