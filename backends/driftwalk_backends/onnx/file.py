"""`onnxruntime,file=...` and `exporter=optimum`: a graph that others made, run as it is.

Plain runs use the file itself. Runs that are looked at use the same graph with more outputs: the
states, wherever they were found. No weight is copied, and nothing is written beside the file.
Optimum's exporter is run as its command line runs it; it needs an older transformers than most do.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.cache import key_of
from driftwalk.decoding import Decoding
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, BackendUnavailable, UsageError
from driftwalk.formats import HonestSides
from driftwalk.mixture import UNROUNDED, Mixture
from driftwalk.names import is_output
from driftwalk.spec import Spec
from driftwalk.states import Probe, State
from driftwalk.weight_source import WeightSource

from ..calls import first_line
from ..fingerprint import versions
from ..layout import Layout
from ..loaded import LoadedModel
from ..probes import make_probe
from ..sources import torch_model
from ..torch_eager import TorchEager
from ..weights import graph_weights
from .backend import OnnxBackend, common_dtype
from .declared_graph import honest_sides
from .decoder_export import begun_on, shortened
from .decoder_files import DecoderFiles, open_decoder, stepped
from .decoding import OUTPUTS, DecodesGraphs, HandOn
from .export import kept
from .export_options import OPTIONS as EXPORT_OPTIONS
from .exposed import silence
from .feeds import is_float, match_outputs, refuse_ignored
from .finding import Finder, Found
from .graph import Arrays, OnnxGraph
from .islands import mixture_of
from .parts import Parts, Runs, open_parts
from .past import windows_of
from .quantised import honest_model
from .stepping import SteppedGraphs
from .switching import only_session_differs


@dataclass(frozen=True)
class Ready:
    """Where the states are for probes of some shape, and which output is the model's which."""

    found: tuple[Found, ...]
    outputs: Mapping[str, str]


class OnnxFile(DecodesGraphs, OnnxBackend):
    """Graphs as they are; the torch model is only asked what its states look like."""

    def __init__(self, spec: Spec, model: object) -> None:
        self._model = torch_model(model)
        super().__init__(spec, self._model.label)
        self._path: Path | None = None
        if "quantize" in spec.options:
            raise UsageError(
                f"{spec}: quantize= is for driftwalk's own exports; a graph that others made is "
                "run as it is."
            )
        if unused := [option for option in EXPORT_OPTIONS if option in spec.options]:
            raise UsageError(
                f"{spec}: {unused[0]}= is for exporter=transformers, torch or auto; a graph that "
                "others made is run as it is."
            )
        if "file" in spec.options:
            if "exporter" in spec.options:
                raise UsageError("file= names a graph, exporter= makes one: give one of the two.")
            named = spec.options["file"]
            self._path = Path(named)
            if not named or not self._path.exists():
                raise UsageError(f"file={named}: there is no such file or folder.")
        else:
            _check_optimum(self._model.module, spec)
        self._ready: dict[str, Ready] = {}
        self._points = ""
        self._mixture: Mixture | None = None

    @cached_property
    def parts(self) -> Parts:
        """The graphs, read and checked."""
        parts = open_parts(self._path or self._optimum())
        self._check_dtype(parts.graphs)
        return parts

    @cached_property
    def decoder(self) -> DecoderFiles:
        """The graphs to decode with."""
        files = open_decoder(self._path or self._optimum())
        self._check_dtype(files.graphs)
        if quantised := [graph.path.name for graph in files.graphs if graph.quantised]:
            raise BackendError(
                f"{quantised[0]} is quantised, and chooses scales by all tokens of a run: its "
                "steps round otherwise than one whole run, and cannot be compared with one."
            )
        return files

    @property
    def _run_graphs(self) -> tuple[OnnxGraph, ...]:
        return self.decoder.graphs if self._has_decoded else self.parts.graphs

    def decode(self, plan: Decoding | None) -> None:
        super().decode(plan)
        if plan is not None and self._path is not None:
            _ = self.decoder  # what cannot be decoded is refused now

    @property
    def is_closed(self) -> bool:
        """Whether several graphs make its steps: their inner states have no name in common."""
        return self._plan is not None and not self.decoder.shows_states

    @cached_property
    def runs(self) -> Runs:
        """How the graphs are run and fed."""
        return Runs(self.parts, self._sessions, self._expected)

    def _expected(self, probe: Probe) -> Arrays:
        with self._torch() as model:
            return model.run(probe)

    def _torch(self) -> TorchEager:
        return TorchEager(Spec("torch", "cpu", "fp32"), self._model)

    def _optimum(self) -> Path:
        """The folder of optimum's export of this model; made once, and kept where it may be."""
        start = time.perf_counter()
        model, key = self._model, ""
        if self._cached and model.has_known_code:
            packages = versions("torch", "transformers", "optimum", "optimum-onnx", "onnx")
            # By what the model itself gives now, too: a patched function is in no fingerprint.
            evidence = model.evidence.of(make_probe(model), "fp32")
            key = key_of("optimum", model.fingerprint, evidence, str(packages)) if evidence else ""

        def make(folder: Path) -> None:
            optimum_export(model.at("fp32", "cpu"), folder)

        folder = kept("optimum", key, make, self._scratch)
        taken = time.perf_counter() - start
        self._seconds["export"] = self._seconds.get("export", 0.0) + taken
        return folder

    @property
    def info(self) -> BackendInfo:
        exporter = "optimum" if self._path is None else "none: a file"
        packages = ("onnxscript", "torch", "transformers", "optimum", "optimum-onnx")
        made = self._file_info(self._run_graphs, packages, exporter, self._points)
        if (mixed := self._mixture) is None:
            return made
        # Without kernels in half precision it puts casts around operations, and leaves out pairs.
        flags = {**made.flags, "casts": UNROUNDED} if self._on_cpu else made.flags
        return replace(
            made, flags=flags, dtype=mixed.dtype, dtypes=mixed.dtypes, stored=mixed.stored
        )

    def prepare(self, probe: Probe) -> None:
        """What a graph of several types computes in is known where its states are."""
        if self._plan is None and any(graph.is_mixed for graph in self.parts.graphs):
            self.prepared(probe)

    def honest_model(self) -> LoadedModel | None:
        """For a graph that is quantised: the model, quantised by driftwalk itself."""
        return honest_model(self._model, self.parts)

    def honest_sides(self) -> HonestSides | None:
        """For a graph that rounds between its products too: the graph as it declares itself."""
        return honest_sides(self, self._model)

    def other_weights(self, model: object, probe: Probe) -> WeightSource | None:
        """Its initialisers, unless they are in eight bits."""
        graphs = self.parts.graphs
        quantised = any(graph.quantised for graph in graphs)
        return None if quantised else graph_weights(graphs, self.parts.label)

    def _forward(self, probe: Probe, sink: Sink | None) -> Arrays:
        if self._plan is not None:
            return self._decoded(probe, self._plan, sink)
        ready = self.prepared(probe)
        states = ready.found if sink is not None else ()
        arrays = self.runs.run(probe, [found.key for found in states])
        if sink is not None:
            for found in states:
                array = found.arrangement.of(arrays[found.key])
                sink(State(found.point, np.ascontiguousarray(array)))
        if not ready.outputs:
            own = [key for key in self.parts.outputs if key in arrays]  # not what is looked at
            floats = [key for key in own if is_float(arrays[key])]
            return {self.parts.split(key)[1]: arrays[key] for key in floats}
        return {name: arrays[key] for name, key in ready.outputs.items()}

    def _graphs(
        self, probe: Probe, plan: Decoding, traced: bool
    ) -> tuple[SteppedGraphs, HandOn, Layout, str]:
        files, dtype = self.decoder, common_dtype(self.decoder.graphs)
        begun, layout = begun_on(self._model, probe, "fp32", self.spec)
        files.check(begun.tensors, self._model.label)
        if files.encoder is None:
            refuse_ignored(files.label, files.first.inputs, probe.inputs)
        found: tuple[Found, ...] = ()
        if traced and files.shows_states:
            found = self._found_in_steps(shortened(probe, sum(plan.chunks)))
        names = [self.parts.split(one.key)[1] for one in found]
        after = self._sessions.of(files.after.path)
        if names:
            after = self._sessions.exposing(files.after, names, keep=True)
        first = after if files.first is files.after else self._sessions.of(files.first.path)
        graphs = stepped(files, first, after, self._sessions)

        def hand_on(joined: dict[str, Array], sink: Sink | None) -> dict[str, Array]:
            named = zip(found, names, strict=True)
            states = [(one.point, one.arrangement.of(joined[name])) for one, name in named]
            own = layout.outputs
            outputs = {n: joined[n] for n in own.names.values() if n in joined}
            if not found:
                states = [(own.point(name), array) for name, array in outputs.items()]
            if sink is not None:
                for point, array in states:
                    sink(State(point, np.ascontiguousarray(array)))
            return outputs

        run = SteppedGraphs(graphs[0], graphs[1], OUTPUTS, windows_of(begun.cache))
        return run, hand_on, layout, dtype

    def _found_in_steps(self, probe: Probe) -> tuple[Found, ...]:
        """Where the states of a whole sequence are; the model is looked at without a cache."""
        plan, self._model.decoding = self._model.decoding, None
        try:
            return self.prepared(probe).found
        finally:
            self._model.decoding = plan

    def prepared(self, probe: Probe) -> Ready:
        """Find the states, once for each shape of a probe."""
        key = "|".join([*self.looks_at, *probe.forms()])
        if key in self._ready:
            return self._ready[key]
        before, start = sum(self._seconds.values()), time.perf_counter()
        with self._torch() as model:
            expected = model.run(probe)
            self.runs.choose(probe, expected)
            model.look(*self.looks_at)
            finder = Finder(model, probe, self.parts, partial(self.runs.fetch, probe))
            found = finder.search()
        if all(is_output(one.point.name) for one in found):
            raise BackendError(
                f"None of the {len(finder.lacking)} states of {self._model.label} was found in "
                f"{self.parts.label}. Is it an export of this model?"
            )
        outputs = match_outputs(
            expected, self.runs.run(probe, ()), lambda k: self.parts.split(k)[1]
        )
        self._ready[key] = Ready(found, outputs)
        if any(graph.is_mixed for graph in self.parts.graphs):
            self._mixture = mixture_of(self.parts, found)
        # In how many ways states were found, and why some were not.
        ways = Counter(one.point.found for one in found)
        words = [f"{count} by {way}" for way, count in ways.items()]
        words += [f"{name} not found: {why}" for name, why in finder.lacking.items()]
        self._points = "; ".join(words)
        booked = sum(self._seconds.values()) - before
        taken = time.perf_counter() - start - booked
        self._seconds["match"] = self._seconds.get("match", 0.0) + taken
        return self._ready[key]

    def _files(self, probe: Probe) -> Sequence[Path]:
        return tuple(graph.path for graph in self.parts.graphs)

    def _like(self, spec: Spec) -> OnnxFile:
        made = type(self)(spec, self._model)
        made._look = self._look
        if only_session_differs(self.spec, spec):
            made._ready, made._mixture = dict(self._ready), self._mixture
            known = {"parts": self.parts, "runs": replace(self.runs, sessions=made._sessions)}
            made.__dict__.update(known)
        return made

    def _close(self) -> None:
        self._ready.clear()
        for made in ("parts", "runs", "decoder"):
            self.__dict__.pop(made, None)
        super()._close()


def _check_optimum(module: nn.Module, spec: Spec) -> None:
    """Refuse what optimum can never export, before anything is loaded."""
    if not hasattr(module, "config") or not hasattr(module.config, "model_type"):
        raise UsageError(
            f"{spec}: optimum exports transformers models only, not {type(module).__name__}."
        )
    if spec.dtype not in ("", "fp32"):
        raise UsageError(f"{spec}: optimum's export is made in fp32; leave the dtype out.")
    installed = versions("transformers", "optimum-onnx")
    if "optimum-onnx" not in installed or find_spec("optimum.exporters.onnx") is None:
        raise BackendUnavailable(
            f"exporter=optimum needs optimum-onnx, which needs transformers below 4.58; here is "
            f"transformers {installed.get('transformers', 'none')}. Install both into an "
            "environment of their own: pip install 'driftwalk[optimum]'. Or export there "
            "(optimum-cli export onnx) and give the graph here: onnxruntime,file=FOLDER."
        )


def optimum_export(module: nn.Module, folder: Path) -> None:
    """Write optimum's graphs into a folder: with a past where the model can have one."""
    from optimum.exporters.onnx import onnx_export_from_model
    from optimum.exporters.tasks import TasksManager

    own: Any = copy.deepcopy(module)  # optimum changes the config of what it exports
    try:
        with silence():
            task = TasksManager.infer_task_from_model(own)
            known = TasksManager.get_supported_tasks_for_model_type(own.config.model_type, "onnx")
            if f"{task}-with-past" in known:
                task = f"{task}-with-past"
            onnx_export_from_model(own, folder, task=task, do_validation=False)
    except Exception as error:  # every architecture fails in its own way
        raise BackendError(
            f"optimum could not export {type(module).__name__}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from error
