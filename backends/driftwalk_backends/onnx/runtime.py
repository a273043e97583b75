"""The `onnxruntime` backend: the model exported to ONNX and run by ONNX Runtime.

`quantize=dynamic-int8` is the same export, its matrices in eight bits. Convolutions stay as they
are: they are few in a transformer, and lose most.

Times per layer are ONNX Runtime's profile folded into points. The exported graph says which tensor
a state is. A tensor belongs to the first point, in order of execution, that needs it. Optimised,
nodes are fused and renamed, but a fused node gives a tensor that was there before: by it the node
finds its point.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.cache import key_of
from driftwalk.decoding import Decoding
from driftwalk.dtypes import FORMATS, Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.files import sha256_of
from driftwalk.spec import Spec
from driftwalk.states import Probe
from driftwalk.weight_source import WeightSource
from driftwalk.workers import in_threads

from ..calls import first_line
from ..fingerprint import versions
from ..layout import Layout
from ..lending import is_large
from ..loaded import LoadedModel
from ..sources import torch_model
from ..weights import graph_weights
from .backend import OnnxBackend
from .decoder_export import decoder_graphs
from .decoding import DecodesGraphs, HandOn
from .export import EVIDENCE, MADE_WITH, Exports, kept
from .export_options import exporters_for
from .exported import NAMES, PLAIN, STATE_PREFIX, TRACED, Exported, read_export
from .exposed import silence
from .graph import Arrays
from .parts import open_parts
from .quantised import honest_model
from .reading import fetch, parsed, read_graph
from .saturation import saturates
from .stepping import StepGraph, SteppedGraphs, step_graph
from .switching import only_session_differs

QUANTISATIONS = ("dynamic-int8",)
EXPORTER, COPIES = 128 << 20, 3
"""Bytes of what exporting imports and makes; and how often an export has all weights at once."""
AFTER = "logits"
"""Where what no state needs belongs: the end of the model."""


class OnnxRuntime(DecodesGraphs, OnnxBackend):
    """Exports once for the shapes of a probe, then runs every probe of those shapes."""

    def __init__(self, spec: Spec, model: object) -> None:
        if type(self) is OnnxRuntime and {"file", "quantize"} & spec.options.keys():
            raise UsageError(
                f"{spec}: OnnxRuntime runs its own float export. driftwalk.backend(spec, model) "
                "makes the backend that a spec names."
            )
        self._model = torch_model(model)
        super().__init__(spec, self._model.label)
        self._dtype = spec.dtype or "fp32"
        exporters = exporters_for(spec, self._model.module)
        shared = self._cached, self._seconds
        self._exports = Exports(self._model, spec, self._dtype, *shared, exporters)

    @property
    def info(self) -> BackendInfo:
        packages = ("onnxscript", "torch", "transformers")
        return self._info(self._dtype, packages, self._exports.flags)

    @property
    def outputs_skipped(self) -> tuple[str, ...]:
        return self._exports.outputs_skipped

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        if self._plan is not None:
            return self._decoded(probe, self._plan, sink)
        exported = self._export(probe)
        session = self._sessions.of(exported.plain if sink is None else exported.traced, alone=True)
        return exported.hand_on(self._ask(session, exported, probe), sink)

    def other_weights(self, model: object, probe: Probe) -> WeightSource | None:
        """What the exporter made of the model's weights; in eight bits they are others."""
        graph = read_graph(self._export(probe).plain)
        return None if graph.quantised else graph_weights([graph], self._model.label)

    def weights_taken(self, lent: bool) -> int:
        """What an export takes at the worst: the graph, and two sessions. Nothing can be lent to
        a graph."""
        copy = self._model.copied_bytes(self._dtype, None, "off", lent=False)
        weights = sum(w.numel() for w in self._model.module.parameters())
        copies = COPIES + (not is_large(self._model.module))  # one to put back: left_behind.py
        return copy + EXPORTER + copies * weights * FORMATS[self._dtype].dtype.itemsize

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """One run of the plain graph under ONNX Runtime's profiler, nodes folded into points."""
        exported = self._export(probe)
        points = [point.name for point in exported.points]
        with tempfile.TemporaryDirectory(prefix="driftwalk-profile-") as folder:
            optimised, profile = Path(folder) / "optimised.onnx", Path(folder) / "profile"
            session = self._sessions.writing_optimised(exported.plain, optimised, profile)
            for _ in range(2):  # the first warms up
                self._ask(session, exported, probe)
            events = json.loads(Path(session.end_profiling()).read_text())
            tensors = tensor_points(parsed(exported.plain).graph, points)
            nodes = node_points(parsed(optimised).graph, tensors, points)
        last = max((event["ts"] for event in events if event.get("name") == "model_run"), default=0)
        kernel = "_kernel_time"
        spent = [
            (nodes.get(event["name"].removesuffix(kernel)), event["dur"] / 1e6)
            for event in events
            if event.get("cat") == "Node" and event["ts"] >= last
            if event.get("name", "").endswith(kernel)
        ]
        return seconds_per_point(points, spent)

    def _graphs(
        self, probe: Probe, plan: Decoding, traced: bool
    ) -> tuple[SteppedGraphs, HandOn, Layout, str]:
        made = decoder_graphs(self._exports, probe, plan)
        first, after = (self._step_graph(one, traced) for one in (made.first, made.after))
        graphs = SteppedGraphs(first, after, made.first.outputs, made.windows)
        return graphs, made.first.hand_on, made.layout, self._dtype

    def _step_graph(self, exported: Exported, traced: bool) -> StepGraph:
        session = self._sessions.of(exported.traced if traced else exported.plain)
        return step_graph(session, self._sessions, self._model.label)

    def _ask(self, session: Any, exported: Exported, probe: Probe) -> dict[str, Any]:
        feed = self._feed(exported, probe)
        return self._sessions.ask(session, None, feed, self._model.label)

    def _feed(self, exported: Exported, probe: Probe) -> dict[str, Array]:
        floats = FORMATS[self._dtype].dtype
        inputs = {**probe.inputs, **self._exports.added(exported, probe)}
        return {n: a.astype(floats) if a.dtype.kind == "f" else a for n, a in inputs.items()}

    def _export(self, probe: Probe) -> Exported:
        return self._exports.get(probe, self._look)

    def _files(self, probe: Probe) -> Sequence[Path]:
        return (self._export(probe).traced,)

    def _like(self, spec: Spec) -> OnnxRuntime:
        made = type(self)(spec, self._model)
        made._look = self._look
        if only_session_differs(self.spec, spec):
            made._exports = self._exports.lent()
        return made

    def _close(self) -> None:
        self._exports.close()
        super()._close()


class OnnxInt8(OnnxRuntime):
    """Exports as its base does; ONNX Runtime's own quantiser then rounds the matrices."""

    _only: ClassVar[str] = f"quantize={QUANTISATIONS[0]}"

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, model)
        spec.choice("quantize", QUANTISATIONS, QUANTISATIONS[0])
        if self._dtype != "fp32":
            raise UsageError(f"{spec}: {self._only} starts from fp32; leave the dtype out.")
        self._rounded: dict[Path, Exported] = {}
        self._left_out = tuple(filter(None, spec.options.get("exclude", "").split(";")))

    @property
    def info(self) -> BackendInfo:
        base = super().info
        flags = {"quantised": QUANTISATIONS[0]}
        if saturates():
            flags["weights"] = "7 bits: products of 8 bits saturate on this CPU"
        return replace(base, flags={**base.flags, **flags})

    def prepare(self, probe: Probe) -> None:
        """Export now: what it may honestly compute is told from the graph."""
        self._export(probe)

    def decode(self, plan: Decoding | None) -> None:
        if plan is not None:
            raise BackendError(
                f"Backend {self.spec} cannot be decoded step by step and compared: it chooses its "
                "scales by all tokens of a run, so that steps round otherwise than one whole run."
            )

    def weights_taken(self, lent: bool) -> int:
        """The same, and the model that it should compute, with a truth of its own."""
        own = self._model.copied_bytes("fp64", None, "off", lent=False)
        return super().weights_taken(lent) + 2 * own

    def honest_model(self) -> LoadedModel | None:
        """The model, quantised alike by driftwalk itself; see quantised.py."""
        latest = next(reversed(self._rounded.values()), None)
        return None if latest is None else honest_model(self._model, open_parts(latest.plain))

    def leaving_out(self, modules: Sequence[str]) -> str:
        """The same, the nodes of some modules left in float."""
        made = self.honest_model()
        if made is None or made.declared is None:
            raise BackendError(f"{self.spec}: its graph cannot be told apart into modules.")
        nodes = [made.declared.sources[path] for path in modules if path in made.declared.sources]
        options = {
            **self.spec.options,
            "exclude": ";".join(dict.fromkeys((*self._left_out, *nodes))),
        }
        return str(replace(self.spec, options=options))

    def _like(self, spec: Spec) -> OnnxRuntime:
        made = super()._like(spec)
        if isinstance(made, OnnxInt8) and only_session_differs(self.spec, spec):
            made._rounded = dict(self._rounded)
        return made

    def _export(self, probe: Probe) -> Exported:
        whole = super()._export(probe)
        if whole.folder not in self._rounded:
            self._rounded[whole.folder] = read_export(self._quantised(whole))
        return self._rounded[whole.folder]

    def _quantised(self, whole: Exported) -> Path:
        def make(folder: Path) -> None:
            shutil.copy(whole.folder / NAMES, folder / NAMES)
            for graph in (TRACED, PLAIN):
                _quantise(whole.folder / graph, folder / graph, self._left_out)

        key = ""
        if self._cached and self._model.has_known_code:
            made_by = str(versions("onnxruntime", "onnx"))
            # By what it is made from, to the last byte: whether that is the model's is settled.
            files = sorted(f for f in whole.folder.iterdir() if f.name not in (MADE_WITH, EVIDENCE))
            hashes = in_threads(sha256_of, files)
            bits = "7 bits" if saturates() else "8 bits"
            what = (self._only, bits, *self._left_out)
            key = key_of(*what, *(file.name for file in files), *hashes, made_by)
        return kept("onnx-int8", key, make, self._scratch)

    def _close(self) -> None:
        self._rounded.clear()
        super()._close()


def _quantise(graph: Path, into: Path, left_out: Sequence[str] = ()) -> None:
    """The graph in int8. Its quantiser makes a MatMul of each Gemm, and names it so."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = parsed(graph)
    fetch(graph, model.graph.initializer)
    known = {node.name for node in model.graph.node}
    known |= {f"{node.name}_MatMul" for node in model.graph.node if node.op_type == "Gemm"}
    if unknown := sorted(set(left_out) - known):
        raise UsageError(f"exclude={unknown[0]}: the exported graph has no such node.")
    del model.graph.value_info[:]  # the quantiser changes nodes, and then trips over old shapes
    try:
        with silence():
            quantize_dynamic(
                model,
                str(into),
                op_types_to_quantize=["MatMul", "Gather"],
                nodes_to_exclude=list(left_out),
                weight_type=QuantType.QInt8,
                reduce_range=saturates(),
                use_external_data_format=True,
            )
    except Exception as error:  # a graph that its passes do not know fails in any way
        raise BackendError(
            f"ONNX Runtime could not quantise the graph: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error


def tensor_points(graph: Any, points: Sequence[str]) -> dict[str, str]:
    """Tensor to point, for every tensor of the exported graph that a node makes."""
    maker = {name: node for node in graph.node for name in node.output}
    found: dict[str, str] = {}
    for point in points:
        waiting = [STATE_PREFIX + point]
        while waiting:
            name = waiting.pop()
            if name in maker and name not in found:
                found |= dict.fromkeys(maker[name].output, point)
                waiting += maker[name].input
    return {name: found.get(name, AFTER) for name in maker}


def node_points(
    optimised: Any, tensors: Mapping[str, str], points: Sequence[str]
) -> dict[str, str]:
    """Node of the optimised graph to point; what is new there goes with the last of its inputs."""
    order = {point: number for number, point in enumerate((*points, AFTER))}
    known = dict(tensors)
    found = {}
    for node in optimised.node:
        own = [known[name] for name in node.output if name in known]
        before = [known[name] for name in node.input if name in known]
        point = own[0] if own else max(before, key=order.__getitem__, default=points[0])
        known |= dict.fromkeys(node.output, point)
        found[node.name] = point
    return found


def seconds_per_point(
    points: Sequence[str], spent: Iterable[tuple[str | None, float]]
) -> dict[str, float]:
    """What nodes took, added up per point, in the order of the points; None is nobody's time."""
    total = dict.fromkeys((*points, AFTER), 0.0)
    for point, seconds in spent:
        if point is not None:
            total[point] += seconds
    return {point: seconds for point, seconds in total.items() if seconds > 0}
