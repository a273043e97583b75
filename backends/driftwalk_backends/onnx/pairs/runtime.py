"""`onnxruntime` where the model is a graph: that graph, or another one beside it (`file=`).

Runs as written with `opt=off`. States are the graph's tensors at the places of `blocks`; in
another graph, at their partners (`partners`).
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State, same_bits

from ...depth import Look
from ..backend import DTYPES, OnnxBackend
from ..graph import OnnxGraph, branches
from ..reading import hash_of, read_graph
from ..sessions import UNPACKED, WEIGHTS_APART
from ..values import FLOAT_KINDS, STEP_KINDS
from .blocks import NODES, Places, places_of
from .model import OnnxModel
from .partners import output_partners, partners
from .probe import fed
from .survivors import is_empty, made_by

DEPTHS = ("block", "op")
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
_RANDOM |= {"Bernoulli", "Multinomial"}


class GraphRuntime(OnnxBackend):
    """One graph in ONNX Runtime, whose points are those of the model's graph."""

    def __init__(self, spec: Spec, model: OnnxModel) -> None:
        super().__init__(spec, model.label)
        self._model = model
        if unused := [option for option in ("exporter", "quantize") if option in spec.options]:
            raise UsageError(
                f"{spec}: {self._model.label} is a graph already; {unused[0]}= has nothing to do."
            )
        named = spec.options.get("file")
        self.path = Path(named) if named is not None else self._model.path
        if not self.path.is_file():
            raise UsageError(f"file={named}: there is no such file.")
        self._exposed: dict[frozenset[str], Any] = {}
        self._optimised: OnnxGraph | None = None

    @cached_property
    def graph(self) -> OnnxGraph:
        own = self._model
        graph = own.graph if self.path == own.path else read_graph(self.path)
        if self.spec.dtype and self.spec.dtype != graph.dtype:
            raise UsageError(
                f"{self.spec}: the graph's weights are {graph.dtype}. Leave the dtype out of the "
                "spec: a file is run as it is."
            )
        return graph

    @property
    def info(self) -> BackendInfo:
        flags = {
            "exporter": "none: a file",
            "file": self.path.name,
            "sha256": hash_of(self.path)[:16],
        }
        if self.graph.quantised:
            flags["quantised"] = "yes"
        return self._info(self.dtype, (), flags)

    @property
    def dtype(self) -> str:
        """What the graph computes in."""
        return self.graph.dtype if self.graph.dtype in ("bf16", *DTYPES) else "fp32"

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

    def feed(self, probe: Probe) -> dict[str, Any]:
        return fed(self.path.name, self.graph.inputs, probe.inputs)

    @cached_property
    def _partners(self) -> dict[str, tuple[str, str]]:
        return partners(self.model_graph, self.graph)

    def find(self, tensor: str) -> tuple[str, str] | None:
        """This graph's own name for a tensor of the model's graph, and how it was found."""
        return self._partners.get(tensor)

    @cached_property
    def output_names(self) -> dict[str, str]:
        """The model graph's names of outputs, by this graph's own."""
        return {b: a for a, b in output_partners(self.model_graph, self.graph).items()}

    @cached_property
    def left(self) -> dict[str, str]:
        """What the runtime's optimiser leaves of this graph; everything where it does nothing."""
        if not self.optimises:
            return self._whole
        folder = tempfile.TemporaryDirectory(prefix="driftwalk-optimised-")
        self._scratch.append(folder)
        target = Path(folder.name) / "optimised.onnx"
        options = self._sessions.options()
        options.optimized_model_filepath = str(target)
        for key, value in WEIGHTS_APART.items():
            options.add_session_config_entry(key, value)
        options.add_session_config_entry(*UNPACKED)  # it will not run
        self._sessions.make(self.path, options)
        if not target.is_file():  # a provider that compiles the graph writes none
            return self._whole
        if is_empty(target):  # all of it was folded into constants
            return {}
        self._optimised = read_graph(target)
        return made_by(self._optimised)

    @property
    def _whole(self) -> dict[str, str]:
        return made_by(self.graph)

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
        asked = _is_number if whole else _is_float
        wanted = frozenset(names)
        if wanted not in self._exposed:
            # What was optimised already is run as it stands: looking cannot undo a fusion there.
            graph, level = self._optimised or self.graph, "off" if self._optimised else ""
            ordered = [name for name in graph.producers if name in wanted]
            self._exposed[wanted] = self._sessions.exposing(graph, ordered, level, packed)
        session = self._exposed[wanted]
        kinds = {o.name: o.type for o in session.get_outputs()}
        ends = [value.name for value in self.graph.outputs]
        fits = FLOAT_KINDS + STEP_KINDS if whole else FLOAT_KINDS
        inner = [n for n in kinds if n in wanted and kinds[n] in fits and n not in ends]
        given = self._run(session, [*inner, *ends], self.feed(probe))
        outputs = {name: given[name] for name in ends}
        if not keep:
            self._exposed.pop(wanted, None)
        found = {n: given[n] for n in (*inner, *(e for e in ends if e in wanted))}
        return {n: a for n, a in found.items() if asked(a)}, self._renamed(outputs)

    def once(self, model: Any, names: list[str], feed: Mapping[str, Any]) -> dict[str, Any]:
        """A graph made of nodes of this one, run as written and let go of."""
        written, folder = model.SerializeToString(), self.graph.folder
        session = self._sessions.of_bytes(written, folder, "off", packed=False)
        return self._run(session, names, feed)

    def repeats_itself(self, probe: Probe) -> bool:
        """Whether two plain runs of one session give the same bits."""
        return same_bits(dict(self.run(probe)), dict(self.run(probe)))

    @property
    def draws(self) -> tuple[str, ...]:
        """Operations in the graph that draw random numbers."""
        return tuple(dict.fromkeys(_drawing(self.graph.proto.graph)))

    def places(self, depth: str) -> Places:
        return places_of(self.model_graph, depth)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        if sink is None:
            ends = [value.name for value in self.graph.outputs]
            return self._renamed(self._run(self._sessions.of(self.path), ends, self.feed(probe)))
        places = self.places(self._look.depth)
        found = [(place, self.find(place.tensor)) for place in places.all]
        shown = [(place, own) for place, own in found if own is not None]
        if places.way == NODES:
            shown = [(place, own) for place, own in shown if own[0] in self.left]
        tensors, outputs = self.tensors(probe, [own for _, (own, _) in shown], keep=True)
        for place, (own, way) in shown:
            if own in tensors and place.point.name not in outputs:
                point = Point(place.point.name, place.point.module, way or places.way)
                sink(State(point, tensors[own]))
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
            hint = "(If the made-up inputs are at fault, give them: --probe FILE.safetensors.)"
            raise BackendError(f"{error} {hint}") from error

    def _close(self) -> None:
        self._exposed.clear()
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


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def _drawing(graph: Any) -> Iterable[str]:
    for node in graph.node:
        if node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2):
            yield node.op_type
        for attribute in node.attribute:
            for inner in branches(attribute):
                yield from _drawing(inner)
