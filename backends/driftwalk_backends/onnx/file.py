"""`onnxruntime,file=...` and `exporter=optimum`: a graph that others made, run as it is.

Plain runs use the file itself. Runs that are looked at use the same graph with more outputs: the
states, wherever they were found. No weight is copied, and nothing is written beside the file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.names import is_output
from driftwalk.spec import Spec
from driftwalk.states import Probe, State

from ..loaded import LoadedModel
from ..sources import torch_model
from ..torch_eager import TorchEager
from .backend import DTYPES, OnnxBackend
from .finding.finder import Finder, Search
from .finding.picks import Limits
from .outputs import is_float, partners
from .parts import Parts, open_parts
from .quantised import honest_model
from .reading import hash_of
from .runs import Runs


@dataclass(frozen=True)
class Ready:
    """Where the states are for probes of some shape, and which output is the model's which."""

    search: Search
    outputs: Mapping[str, str]


class OnnxFile(OnnxBackend):
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
        if "file" in spec.options:
            if "exporter" in spec.options:
                raise UsageError("file= names a graph, exporter= makes one: give one of the two.")
            self._path = _existing(spec.options["file"])
        else:
            from .optimum import check

            check(self._model.module, spec)
        self._ready: dict[str, Ready] = {}
        self._told = ""

    @cached_property
    def parts(self) -> Parts:
        """The graphs, read and checked."""
        parts = open_parts(self._path or self._optimum())
        found = {part.graph.dtype for part in parts.all}
        if self.spec.dtype and found != {self.spec.dtype}:
            raise UsageError(
                f"{self.spec}: the graph's weights are {', '.join(sorted(found))}. Leave the dtype "
                "out of the spec: a file is run as it is."
            )
        return parts

    @cached_property
    def runs(self) -> Runs:
        """How the graphs are run and fed."""
        return Runs(self.parts, self._sessions, self._expected)

    def _expected(self, probe: Probe) -> Mapping[str, Array]:
        with self._torch() as model:
            return model.run(probe)

    def _torch(self) -> TorchEager:
        return TorchEager(Spec("torch", "cpu", "fp32"), self._model)

    def _optimum(self) -> Path:
        """The folder of optimum's export of this model; made once, and kept where it may be."""
        from .optimum import exported

        start = time.perf_counter()
        folder = exported(self._model, self._cached, self._scratch)
        self._seconds["export"] = time.perf_counter() - start
        return folder

    @property
    def info(self) -> BackendInfo:
        graphs = [part.graph for part in self.parts.all]
        flags = {
            "exporter": "optimum" if self._path is None else "none: a file",
            "file": self.parts.label,
            "sha256": ", ".join(hash_of(graph.path)[:16] for graph in graphs),
        }
        if self._quantised:
            flags["quantised"] = "yes"
        if self._told:
            flags["points"] = self._told
        packages = ("onnxscript", "torch", "transformers", "optimum", "optimum-onnx")
        return self._info(self._dtype_of(), packages, flags)

    def _dtype_of(self) -> str:
        found = {part.graph.dtype for part in self.parts.all}
        known = [dtype for dtype in ("bf16", *DTYPES) if dtype in found]
        return known[0] if len(known) == 1 else "fp32"

    @property
    def _quantised(self) -> bool:
        return any(part.graph.quantised for part in self.parts.all)

    def honest_model(self) -> LoadedModel | None:
        """For a graph that is quantised: the model, quantised by driftwalk itself."""
        return honest_model(self._model, self.parts)

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        ready = self.prepared(probe)
        wanted = [found.key for found in ready.search.found] if sink is not None else []
        arrays = self.runs.run(probe, wanted)
        if sink is not None:
            for found in ready.search.found:
                array = found.arrangement.of(arrays[found.key])
                sink(State(found.point, np.ascontiguousarray(array)))
        if not ready.outputs:
            floats = [key for key in arrays if is_float(arrays[key])]
            return {self.parts.split(key)[1]: arrays[key] for key in floats}
        return {name: arrays[key] for name, key in ready.outputs.items()}

    def prepared(self, probe: Probe) -> Ready:
        """Find the states, once for each shape of a probe."""
        key = "|".join([*self.looks_at, *probe.forms()])
        if key not in self._ready:
            before, start = sum(self._seconds.values()), time.perf_counter()
            with self._torch() as model:
                expected = model.run(probe)
                self.runs.choose(probe, expected)
                model.look(*self.looks_at)
                finder = Finder(
                    model,
                    probe,
                    self.parts,
                    partial(self.runs.fetch, probe),
                    Limits.of(self._dtype_of(), self._quantised),
                )
                search = finder.search()
            if all(is_output(found.point.name) for found in search.found):
                raise BackendError(
                    f"None of the {len(search.lacking)} states of {self._model.label} was found in "
                    f"{self.parts.label}. Is it an export of this model?"
                )
            outputs = partners(expected, self.runs.run(probe, ()), lambda k: self.parts.split(k)[1])
            self._ready[key] = Ready(search, outputs)
            self._told = _told(search)
            booked = sum(self._seconds.values()) - before
            self._seconds["match"] = time.perf_counter() - start - booked
        return self._ready[key]

    def _close(self) -> None:
        self._ready.clear()
        for made in ("parts", "runs"):
            self.__dict__.pop(made, None)
        super()._close()


def _existing(text: str) -> Path:
    path = Path(text)
    if not text or not path.exists():
        raise UsageError(f"file={text}: there is no such file or folder.")
    return path


def _told(search: Search) -> str:
    """In how many ways states were found, and why some were not."""
    ways = Counter(found.point.found for found in search.found)
    told = [f"{count} by {way}" for way, count in ways.items()]
    told += [f"{name} not found: {why}" for name, why in search.lacking.items()]
    return "; ".join(told)
