"""`onnxruntime` where the model is a graph: that graph, or another one beside it (`file=`).

Runs as written with `opt=off`. States are the graph's tensors at the points of `blocks`; in
another graph, at their partners (`partners`).

Asking for a tensor inside a fused operation would undo the fusion, and show the arithmetic of
another graph than the one that runs. So the runtime writes down what it made of the graph, and only
tensors that are still there are looked at: the nearest shared boundaries of what was fused.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import Backend, BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from ...depth import Look
from ..backend import OnnxBackend
from ..export_options import OPTIONS as EXPORT_OPTIONS
from ..file import OnnxFile
from ..graph import FLOAT_KINDS, STEP_KINDS, Arrays, OnnxGraph, branches
from ..parts import Part
from ..reading import parsed, read_graph
from ..runtime import OnnxRuntime
from ..structure import NODES, points_of
from .model import OnnxModel
from .partners import output_partners, partners
from .probe import GraphProbe, fed

DEPTHS = ("block", "op")
_OF_SESSIONS = ("opt", "provider", "threads", "disable", "config")
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
_RANDOM |= {"Bernoulli", "Multinomial"}


class GraphRuntime(OnnxBackend):
    """One graph in ONNX Runtime, whose points are those of the model's graph."""

    def __init__(self, spec: Spec, model: OnnxModel) -> None:
        super().__init__(spec, model.label)
        self._model = model
        if unused := [o for o in ("exporter", "quantize", *EXPORT_OPTIONS) if o in spec.options]:
            raise UsageError(
                f"{spec}: {self._model.label} is a graph already; {unused[0]}= has nothing to do."
            )
        named = spec.options.get("file")
        self.path = Path(named) if named is not None else self._model.path
        if not self.path.is_file():
            raise UsageError(f"file={named}: there is no such file.")
        self._optimised: OnnxGraph | None = None

    @cached_property
    def graph(self) -> OnnxGraph:
        own = self._model
        graph = own.graph if self.path == own.path else read_graph(self.path)
        self._check_dtype([graph])
        return graph

    @property
    def info(self) -> BackendInfo:
        return self._file_info([self.graph])

    def look(self, depth: str, layer: str = "") -> None:
        if depth not in DEPTHS:
            raise UsageError(
                f"{self._model.label} is a graph: it has blocks and nodes, no modules. Use "
                f"--depth {' or '.join(DEPTHS)}."
            )
        self._look = Look(depth, layer)

    @property
    def model_graph(self) -> OnnxGraph:
        """The graph whose points these are; this one, unless another file was named."""
        return self._model.graph

    @property
    def optimises(self) -> bool:
        return self._sessions.level != "off"

    @property
    def is_as_written(self) -> bool:
        """Whether this is the model's own graph, run on the CPU with nothing optimised."""
        on_cpu = self._sessions.flags["provider"] == "CPUExecutionProvider"
        return on_cpu and not self.optimises and self.path == self._model.path

    def feed(self, probe: Probe) -> dict[str, Any]:
        probe.refuse_others(f"The graph {self.path.name}")
        return fed(self.path.name, self.graph.inputs, probe.inputs)

    @cached_property
    def partners(self) -> dict[str, tuple[str, str]]:
        """This graph's names for tensors of the model's graph, each with how it was found."""
        return partners(self.model_graph, self.graph)

    @cached_property
    def output_names(self) -> dict[str, str]:
        """The model graph's names of outputs, by this graph's own."""
        return {b: a for a, b in output_partners(self.model_graph, self.graph).items()}

    @cached_property
    def left(self) -> dict[str, str]:
        """The tensors that the runtime's optimiser leaves of this graph, each with the operation
        that makes it; all of them where it does nothing."""
        whole = {name: self.graph.op_of(name) for name in self.graph.producers}
        if not self.optimises:
            return whole
        prefix = "driftwalk-optimised-"
        folder = self._scratch.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
        target = Path(folder) / "optimised.onnx"
        self._sessions.writing_optimised(self.path, target)
        if not target.is_file():  # a provider that compiles the graph writes none
            return whole
        if not parsed(target).graph.node:  # all of it was folded into constants
            return {}
        self._optimised = read_graph(target)
        return {name: self._optimised.op_of(name) for name in self._optimised.producers}

    def tensors(
        self,
        probe: Probe,
        names: Iterable[str],
        *,
        keep: bool = False,
        packed: bool = True,
        whole: bool = False,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The values of some tensors, as far as they are floats, and the outputs; one run.

        `packed=False` is for a graph run as written, once: its session is made much faster.
        `whole` asks for whole numbers too.
        """
        wanted = frozenset(names)
        # What was optimised already is run as it stands: looking cannot undo a fusion there.
        graph, level = self._optimised or self.graph, "off" if self._optimised else ""
        session = self._sessions.exposing(graph, wanted, level, packed, keep)
        ends = [value.name for value in self.graph.outputs]
        fits = FLOAT_KINDS + STEP_KINDS if whole else FLOAT_KINDS
        inner = [
            o.name
            for o in session.get_outputs()
            if o.name in wanted and o.type in fits and o.name not in ends
        ]
        given = self._run(session, [*inner, *ends], self.feed(probe))
        kinds = "fiub" if whole else "f"
        found = {
            name: given[name]
            for name in (*inner, *(end for end in ends if end in wanted))
            if isinstance(given[name], np.ndarray) and given[name].dtype.kind in kinds
        }
        return found, self._renamed({name: given[name] for name in ends})

    def once(self, model: Any, names: list[str], feed: Mapping[str, Any]) -> dict[str, Any]:
        """A graph made of nodes of this one, run as written and let go of."""
        folder = self.graph.path.parent
        session = self._sessions.of_bytes(model.SerializeToString(), folder, "off", packed=False)
        return self._run(session, names, feed)

    @property
    def draws(self) -> tuple[str, ...]:
        """Operations in the graph that draw random numbers."""
        return tuple(dict.fromkeys(_drawing(self.graph.proto.graph)))

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        if sink is None:
            ends = [value.name for value in self.graph.outputs]
            return self._renamed(self._run(self._sessions.of(self.path), ends, self.feed(probe)))
        points = points_of(self.model_graph, self._look.depth)
        shown = [
            (point, *self.partners[tensor])
            for point, tensor in points.tensors.items()
            if tensor in self.partners
        ]
        if points.way == NODES:
            shown = [(point, own, way) for point, own, way in shown if own in self.left]
        tensors, outputs = self.tensors(probe, [own for _, own, _ in shown], keep=True)
        for point, own, way in shown:
            if own in tensors and point.name not in outputs:
                sink(State(Point(point.name, point.module, way or points.way), tensors[own]))
        for name, array in outputs.items():
            sink(State(Point(name, "output"), array))
        return outputs

    def _renamed(self, outputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs under the names that the model's graph has for them, as arrays of numbers."""
        found: dict[str, Array] = {}
        for name, value in outputs.items():
            known = self.output_names.get(name, name)
            parts = {known: value}
            if isinstance(value, list):  # a sequence of tensors: how many, and each of them
                parts = {known: np.array(len(value))}
                parts |= {f"{known}[{i}]": part for i, part in enumerate(value)}
            found |= {n: _as_numbers(part) for n, part in parts.items() if part is not None}
        return found

    def _run(self, session: Any, names: list[str], feed: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._sessions.ask(session, names, feed, self.path.name)
        except BackendError as error:
            hint = "(If the made-up inputs are at fault, give them, --probe FILE.safetensors, or "
            hint += "other shapes, --shape NAME=1,512.)"
            raise BackendError(f"{error} {hint}") from error

    def _files(self, probe: Probe) -> Sequence[Path]:
        return (self.path,)

    def _like(self, spec: Spec) -> GraphRuntime:
        made = type(self)(spec, self._model)
        made._look = self._look
        return made

    def _close(self) -> None:
        self._optimised = None
        self.__dict__.pop("left", None)
        super()._close()


def _as_numbers(value: Any) -> Array:
    """Text has no distance: each text becomes a number of its own, to be compared exactly."""
    array = np.asarray(value)
    if array.dtype.kind not in "OUS":
        return array
    digests = [hashlib.sha256(str(item).encode()).digest()[:6] for item in array.reshape(-1)]
    numbers = [int.from_bytes(digest, "big") for digest in digests]
    return np.array(numbers, dtype=np.int64).reshape(array.shape)


def _drawing(graph: Any) -> Iterator[str]:
    for node in graph.node:
        if node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2):
            yield node.op_type
        for inner in branches(node):
            yield from _drawing(inner)


@dataclass(frozen=True, eq=False)
class WalkedGraph:
    """A graph behind a backend for a torch model, what it is given, and the model's points."""

    model: OnnxModel
    spec: Spec
    probe: Probe
    points: dict[str, str]
    """The tensors that are the states of points, by the point's name."""

    @contextmanager
    def opened(self) -> Iterator[tuple[GraphRuntime, GraphRuntime]]:
        """The graph as written, and as the candidate runs it."""
        kept = {k: v for k, v in self.spec.options.items() if k in _OF_SESSIONS}
        threads = {k: v for k, v in kept.items() if k == "threads"}
        written = Spec("onnxruntime", "cpu", "", {"opt": "off", **threads})
        run = Spec("onnxruntime", self.spec.device, "", kept)
        with GraphRuntime(written, self.model) as first, GraphRuntime(run, self.model) as other:
            yield first, other


def graphs_of(backend: Backend, probe: Probe) -> tuple[WalkedGraph, ...]:
    """The graphs a backend runs on a probe, to be walked node by node; none where it runs none."""

    def walked(path: Path, feed: Arrays, points: dict[str, str]) -> WalkedGraph:
        return WalkedGraph(OnnxModel(path), backend.spec, GraphProbe(feed), points)

    if isinstance(backend, OnnxFile):
        points: dict[Part, dict[str, str]] = {part: {} for part in backend.parts.all}
        for found in backend.prepared(probe).found:
            part, tensor = backend.parts.split(found.key)
            points[part][found.point.name] = tensor
        fed_parts = backend.runs.fed(probe)
        return tuple(walked(part.graph.path, feed, points[part]) for part, feed in fed_parts)
    if isinstance(backend, OnnxRuntime):
        exported = backend._export(probe)
        return (walked(exported.plain, backend._feed(exported, probe), exported.tensors),)
    return ()
