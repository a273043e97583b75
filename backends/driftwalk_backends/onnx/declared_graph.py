"""A quantised graph as it declares itself: what it rounds, as it says; all else in float64.

For graphs that round what lies between their products too (`QuantizeLinear`), where no model has
modules for it. The truth runs the graph by `wide`; the yardstick is the same graph in ONNX Runtime,
nothing fused, and near enough to the edges of its roundings that some of them tip over.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Offer, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.formats import Declared, HonestSides
from driftwalk.names import is_output
from driftwalk.spec import Spec
from driftwalk.states import Probe, State

from ..depth import Looks
from ..formats.constants import TIPPING_NOISE
from ..formats.declared import declared_of
from ..formats.folding import folded
from ..loaded import LoadedModel
from .graph import Arrays, OnnxGraph
from .parts import Part
from .quantised import UnreadError, stored_in
from .unfused import unfused
from .unrounded import OwnNumbers, unrounded
from .wide.truth import GraphTruth

GIVEN = "/given"
"""After the name of a tensor whose takers get another one."""
FIXED = "fixed steps"


def honest_sides(file: Any, model: LoadedModel) -> HonestSides | None:
    """The truth and the yardstick of a quantised graph that others made (`OnnxFile`)."""
    graphs = file.parts.graphs
    if not any(graph.quantised for graph in graphs):
        return None
    for graph in graphs:
        _check_steps(graph)
    module = model.at("fp32", "cpu")
    in_one = folded(module)
    modules = (module,) if in_one is None else (module, in_one)
    own = OwnNumbers(modules)
    return HonestSides(
        truth=lambda: DeclaredGraph(file, _as_declared, "fp64"),
        yardstick=lambda: DeclaredGraph(file, _nudged, "fp32"),
        declared=_declared([model, *(LoadedModel(m, model.label) for m in modules[1:])], graphs),
        in_float=lambda cut, moved: DeclaredGraph(
            file, partial(unrounded, own=own, cut=cut, moved=moved), "fp64"
        ),
        may_be_folded=in_one is not None,
    )


def _check_steps(graph: OnnxGraph) -> None:
    """Refuse to round by what is no step: the quotient is no number, or is the same for all."""
    for node in graph.nodes:
        # What is fused takes whole numbers and, as its only floats, their steps.
        taken = node.inputs[1:2] if node.op == "QuantizeLinear" else node.inputs
        if node.op != "QuantizeLinear" and not node.op.startswith("QLinear"):
            continue
        for step in map(graph.stored, taken):
            if step is None or step.dtype.kind != "f" or (np.isfinite(step) & (step != 0)).all():
                continue
            raise BackendError(
                f"{graph.path.name}: {node.name or node.outputs[0]} rounds by a step of "
                f"{step[~np.isfinite(step) | (step == 0)].flat[0]}. What becomes of its numbers is "
                "not defined, and differs between machines. Calibration gives such steps for "
                "attention scores with a mask of minus infinity added: leave the nodes that make "
                "and take them in float (nodes_to_exclude), and quantise it again."
            )


def _declared(models: Sequence[LoadedModel], graphs: Sequence[OnnxGraph]) -> Declared:
    """What is stored how, and whether it is a model's, as far as that can be told."""
    try:
        found = [one for graph in graphs for one in stored_in(graph)]
    except UnreadError:
        found = []
    made = (declared_of(model, found, partly=True) for model in models)
    says = [one.declared for one in made if one is not None and one.declared is not None]
    if not says:
        return Declared((), tips=True, many_tip=True)
    most = max(says, key=lambda one: sum(kind.weights for kind in one.stored) - len(one.wrong))
    wrong = {path: w for path, w in most.wrong.items() if all(path in one.wrong for one in says)}
    fixed = any(node.op == "QuantizeLinear" for graph in graphs for node in graph.nodes)
    kinds = most.stored
    if fixed:
        kinds = tuple(replace(kind, inputs=kind.inputs or FIXED) for kind in kinds)
    return replace(most, stored=kinds, wrong=wrong, tips=True, many_tip=True)


class DeclaredGraph(Looks, Backend):
    """Gives states, and replays, from the tensors that were found to be a model's states.

    `write` makes of a graph the one that runs.
    """

    name: ClassVar[str] = "declared"

    def __init__(self, file: Any, write: Callable[[OnnxGraph], Any], dtype: str) -> None:
        super().__init__(Spec("declared", "cpu", dtype))
        self._file, self._write = file, write
        self._in_float64 = dtype == "fp64"
        self._protos: dict[Part, Any] = {}
        self._shapes: dict[tuple[object, ...], dict[str, tuple[int, ...]]] = {}
        """Of the tensors of plain runs, by probe and by where they were looked at."""

    @classmethod
    def offers(cls) -> Sequence[Offer]:
        return ()

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(str(self.spec), self.name, "cpu", self.spec.dtype)

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        ready, arrays = self._ran_plain(probe)
        if sink is not None:
            _hand_on(ready, arrays, sink)
        return {name: arrays[key] for name, key in ready.outputs.items() if key in arrays}

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Each point from the given states before it: their tensors' takers get the given ones."""
        ready, where = self._prepared(probe), self._where(probe)
        shapes = self._shapes.get(where)
        if shapes is None:
            self._ran_plain(probe)
            shapes = self._shapes[where]
        inner = [f for f in ready.found if f.key in shapes and not is_output(f.point.name)]
        put = {
            found.key: found.arrangement.back(given[found.point.name], shapes[found.key])
            for found in inner
            if found.point.name in given
            and given[found.point.name].size == math.prod(shapes[found.key])
        }
        _hand_on(ready, self._ran(probe, put)[1], sink)

    def _where(self, probe: Probe) -> tuple[object, ...]:
        return probe.sha256, self.looks_at

    def _ran_plain(self, probe: Probe) -> tuple[Any, dict[str, Array]]:
        ready, arrays = self._ran(probe, {})
        self._shapes[self._where(probe)] = {key: array.shape for key, array in arrays.items()}
        return ready, arrays

    def _ran(self, probe: Probe, put: Arrays) -> tuple[Any, dict[str, Array]]:
        """The states' tensors of one run, by key; where takers get others, those are put there."""
        ready = self._prepared(probe)
        parts = self._file.parts
        wanted = [*(found.key for found in ready.found), *ready.outputs.values()]
        arrays: dict[str, Array] = {}
        for part, feed in self._file.runs.fed(probe):
            names = [name for own, name in map(parts.split, wanted) if own is part]
            others = {
                name: array
                for (own, name), array in zip(map(parts.split, put), put.values(), strict=True)
                if own is part
            }
            graph = OnnxGraph(part.graph.path, _cut(self._proto(part), others))
            fed = {**feed, **{f"{n}{GIVEN}": a.astype(np.float32) for n, a in others.items()}}
            made = self._tensors(graph, fed, list(dict.fromkeys(names)))
            arrays |= zip(parts.keys(part, made), made.values(), strict=True)
        return ready, arrays

    def _prepared(self, probe: Probe) -> Any:
        """Where the states are, at the depth that this one looks at."""
        before = self._file.looks_at
        self._file.look(*self.looks_at)
        try:
            return self._file.prepared(probe)
        finally:
            self._file.look(*before)

    def _tensors(
        self, graph: OnnxGraph, feed: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, Array]:
        if self._in_float64:
            return GraphTruth(graph, feed).tensors(names)
        sessions = self._file._sessions
        session = sessions.of_bytes(graph.exposing(names), graph.path.parent, "off")
        made: dict[str, Array] = sessions.ask(session, names, feed, graph.path.name)
        return made

    def _proto(self, part: Part) -> Any:
        if part not in self._protos:
            self._protos[part] = self._write(part.graph)
        return self._protos[part]


def _hand_on(ready: Any, arrays: Arrays, sink: Sink) -> None:
    """Each state, from the tensor that it was found in."""
    for found in ready.found:
        if found.key in arrays:
            array = found.arrangement.of(arrays[found.key])
            sink(State(found.point, np.ascontiguousarray(array)))


def _cut(model: Any, given: Arrays) -> Any:
    """The graph in which the takers of some tensors get others, that are given as inputs."""
    from onnx import TensorProto, helper

    made = copy.deepcopy(model)
    for node in made.graph.node:
        for place, name in enumerate(node.input):
            if name in given:
                node.input[place] = f"{name}{GIVEN}"
    made.graph.input.extend(
        helper.make_tensor_value_info(f"{name}{GIVEN}", TensorProto.FLOAT, array.shape)
        for name, array in given.items()
    )
    return made


def _as_declared(graph: OnnxGraph) -> Any:
    return unfused(graph.proto, graph.stored)


def _nudged(graph: OnnxGraph) -> Any:
    """Every number that is rounded while the graph runs is off by as much as may tip it over."""
    from onnx import helper

    model = _as_declared(graph)
    stored = {tensor.name for tensor in model.graph.initializer}
    stored |= {n for node in model.graph.node if node.op_type == "Constant" for n in node.output}
    nodes = []
    for number, node in enumerate(model.graph.node):
        rounds = node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
        if rounds and node.input[0] not in stored:
            source, noise, near = node.input[0], f"nudge.{number}/noise", f"nudge.{number}/near"
            how = {"mean": 1.0, "scale": TIPPING_NOISE, "seed": float(number)}
            nodes.append(helper.make_node("RandomNormalLike", [source], [noise], **how))
            nodes.append(helper.make_node("Mul", [source, noise], [near]))
            node.input[0] = near
        nodes.append(node)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model
