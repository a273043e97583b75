"""The graph a candidate runs, and what its tensors held: from there a layer can be cut out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Trace

from ..onnx.export import Exported
from ..onnx.file import OnnxFile
from ..onnx.runtime import OnnxRuntime
from ..openvino_runtime import OpenVino
from .layer_graph import Whole


@dataclass(frozen=True, eq=False)
class Source:
    """A whole graph, its states as the graph itself has them, and what it is fed."""

    whole: Whole
    states: Mapping[str, Array]
    inputs: Mapping[str, Array]

    def fed(self, name: str, what: str) -> Array:
        """What an input of the layer is to be given: a state, or an input of the whole graph."""
        return self.states[what] if what in self.states else self.inputs[name]


def graph_of(candidate: OnnxRuntime | OnnxFile | OpenVino, trace: Trace, point: str) -> Source:
    """The graph behind a candidate's state at a point."""
    if isinstance(candidate, OnnxFile):
        return _of_others(candidate, trace, point)
    states = {state.point.name: state.array for state in trace}
    return Source(whole_of(candidate._export(trace.probe)), states, trace.probe.inputs)


def whole_of(exported: Exported) -> Whole:
    """An export of our own: its states are outputs, by name."""
    return Whole(exported.traced, exported.tensors)


def _of_others(candidate: OnnxFile, trace: Trace, point: str) -> Source:
    """A graph that others made: states where they were found, and in the order they lie there."""
    probe, parts = trace.probe, candidate.parts
    found = {one.point.name: one for one in candidate.prepared(probe).found}
    if point not in found:
        raise BackendError(f"The graph has no tensor that is known to be {point}.")
    own, _ = parts.split(found[point].key)
    mine = {name: one.key for name, one in found.items() if parts.split(one.key)[0] is own}
    arrays = candidate.runs.run(probe, mine.values())
    states = {name: arrays[key] for name, key in mine.items()}
    if not np.array_equal(states[point].ravel(), trace[point].ravel(), equal_nan=True):
        raise BackendError(f"The graph has {point} in another order of its axes.")
    feed = next(feed for part, feed in candidate.runs.fed(probe) if part is own)
    tensors = {name: parts.split(key)[1] for name, key in mine.items()}
    return Source(Whole(own.graph.path, tensors), states, feed)
