"""The graphs behind a backend that runs a torch model as ONNX, ready to be walked node by node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from driftwalk.adapter import Backend
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..file import OnnxFile
from ..graph import OnnxGraph
from ..runtime import OnnxRuntime
from .model import OnnxModel
from .probe import GraphProbe
from .runtime import GraphRuntime

_KEPT = ("opt", "provider", "threads")


@dataclass(frozen=True, eq=False)
class WalkedGraph:
    """A graph, what it is given, and the tensors that are the states of the model's points."""

    model: OnnxModel
    spec: Spec
    probe: Probe
    points: dict[str, str]

    @property
    def path(self) -> Path:
        return self.model.path

    @property
    def graph(self) -> OnnxGraph:
        return self.model.graph

    @property
    def order(self) -> dict[str, int]:
        return self.graph.producers

    @contextmanager
    def opened(self) -> Iterator[tuple[GraphRuntime, GraphRuntime]]:
        """The graph as written, and as the candidate runs it."""
        threads = {k: v for k, v in self.spec.options.items() if k == "threads"}
        written = Spec("onnxruntime", "cpu", "", {"opt": "off", **threads})
        own = {k: v for k, v in self.spec.options.items() if k in _KEPT}
        run = Spec("onnxruntime", self.spec.device, "", own)
        with GraphRuntime(written, self.model) as first, GraphRuntime(run, self.model) as other:
            yield first, other


def graphs_of(backend: Backend, probe: Probe) -> tuple[WalkedGraph, ...]:
    """The graphs a backend runs on a probe; none where it runs no graph."""
    if isinstance(backend, OnnxFile):
        ready = backend.prepared(probe)
        keys = {f.point.name: backend.parts.split(f.key) for f in ready.search.found}
        found: list[WalkedGraph] = []
        for part, feed in backend.runs.fed(probe):
            points = {name: tensor for name, (own, tensor) in keys.items() if own is part}
            model = OnnxModel(part.graph.path)
            found.append(WalkedGraph(model, backend.spec, GraphProbe(feed), points))
        return tuple(found)
    if isinstance(backend, OnnxRuntime):
        exported = backend._export(probe)
        model = OnnxModel(exported.plain)
        feed = backend._feed(backend._sessions.of(exported.plain), probe)
        return (WalkedGraph(model, backend.spec, GraphProbe(feed), exported.tensors),)
    return ()
