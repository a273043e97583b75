"""`onnxruntime,file=...` and `exporter=optimum`: a graph that others made, run as it is.

Plain runs use the file itself. Runs that are looked at use the same graph with more outputs: the
states, wherever they were found. No weight is copied, and nothing is written beside the file.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.adapter import BackendInfo, Sink
from driftwalk.cache import FolderCache, key_of
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.spec import Spec
from driftwalk.states import Probe, State

from .fingerprint import versions
from .onnx_choice import distance, floats, guessed, ranked, settles
from .onnx_export import Exported
from .onnx_finder import Finder, Search
from .onnx_graph import FLOAT_KINDS
from .onnx_inputs import Feed, feeds
from .onnx_match import MARGIN, Candidate, error
from .onnx_model import hash_of
from .onnx_parts import Part, Parts, open_parts
from .onnx_quantised import honest_model
from .onnx_runtime import BESIDE, DTYPES, EXPORTERS, OnnxRuntime
from .sources import LoadedModel
from .torch_eager import TorchEager

_AT_ONCE = 128
"""Tensors fetched in one run while states are looked for: what bounds the memory of it."""


@dataclass(frozen=True)
class _Ready:
    """Where the states are for probes of some shape, and which output is the model's which."""

    search: Search
    outputs: Mapping[str, str]


class OnnxFile(OnnxRuntime):
    """Graphs as they are; the torch model is only asked what its states look like."""

    def __init__(self, spec: Spec, model: object) -> None:
        super().__init__(spec, model)
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
        elif self._exporter == EXPORTERS[1]:
            from .optimum_export import check

            check(self._model.module, spec)
        self._ready: dict[str, _Ready] = {}
        self._chosen: dict[str, list[int]] = {}
        self._looked: dict[tuple[int, frozenset[str]], Any] = {}
        self._told = ""

    @cached_property
    def _parts(self) -> Parts:
        parts = open_parts(self._path or self._optimum())
        found = {part.graph.dtype for part in parts.all}
        if self.spec.dtype and found != {self.spec.dtype}:
            raise UsageError(
                f"{self.spec}: the graph's weights are {', '.join(sorted(found))}. Leave the dtype "
                "out of the spec: a file is run as it is."
            )
        return parts

    def _optimum(self) -> Path:
        """The folder of optimum's export of this model; made once, and kept where it may be."""
        from .optimum_export import export

        start = time.perf_counter()

        def make(folder: Path) -> None:
            export(self._model.at("fp32", "cpu"), folder)

        if self.spec.options.get("cache") != "off" and self._model.has_known_code:
            packages = versions("torch", "transformers", "optimum", "optimum-onnx", "onnx")
            key = key_of("optimum", self._model.fingerprint, str(packages))
            folder = FolderCache("optimum").get(key, make)
        else:
            self._scratch.append(tempfile.TemporaryDirectory(prefix="driftwalk-optimum-"))
            folder = Path(self._scratch[-1].name)
            make(folder)
        self._seconds["export"] = time.perf_counter() - start
        return folder

    @property
    def info(self) -> BackendInfo:
        base = super().info
        graphs = [part.graph for part in self._parts.all]
        flags = dict(base.flags) | {
            "exporter": "optimum" if self._path is None else "none: a file",
            "file": ", ".join(graph.path.name for graph in graphs),
            "sha256": ", ".join(hash_of(graph.path)[:16] for graph in graphs),
        }
        if any(graph.quantised for graph in graphs):
            flags["quantised"] = "yes"
        if self._told:
            flags["points"] = self._told
        packages = dict(base.versions) | versions("optimum", "optimum-onnx")
        return BackendInfo(base.spec, base.name, base.device, self._dtype_of(), packages, flags)

    def _dtype_of(self) -> str:
        found = {part.graph.dtype for part in self._parts.all}
        known = [dtype for dtype in ("bf16", *DTYPES) if dtype in found]
        return known[0] if len(known) == 1 else "fp32"

    def honest_model(self) -> LoadedModel | None:
        """For a graph that is quantised: the model, quantised by driftwalk itself."""
        return honest_model(self._model, self._parts)

    def _export(self, probe: Probe) -> Exported:
        raise BackendError(f"{self.spec} runs a graph that others made; driftwalk exports none.")

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        return {}

    def _forward(self, probe: Probe, sink: Sink | None) -> Mapping[str, Array]:
        ready = self._prepare(probe)
        wanted = [found.key for found in ready.search.found] if sink is not None else []
        arrays = self._run(probe, wanted)
        if sink is not None:
            for found in ready.search.found:
                array = found.arrangement.of(arrays[found.key])
                sink(State(found.point, np.ascontiguousarray(array)))
        if not ready.outputs:
            return {self._parts.split(key)[1]: arrays[key] for key in arrays if floats(arrays[key])}
        return {name: arrays[key] for name, key in ready.outputs.items()}

    def _prepare(self, probe: Probe) -> _Ready:
        """Find the states, once for each shape of a probe."""
        shapes = [f"{n}{a.shape}{a.dtype}" for n, a in sorted(probe.inputs.items())]
        key = "|".join([*self.looks_at, *shapes])
        if key not in self._ready:
            before, start = sum(self._seconds.values()), time.perf_counter()
            with TorchEager(Spec("torch", "cpu", "fp32"), self._model) as model:
                expected = model.run(probe)
                self._choose(probe, expected)
                model.look(*self.looks_at)
                finder = Finder(
                    model,
                    probe,
                    self._parts,
                    lambda keys, sizes: self._fetch(probe, keys, sizes),
                    self._dtype_of(),
                    any(part.graph.quantised for part in self._parts.all),
                )
                search = finder.search()
            if all(found.point.name == "logits" for found in search.found):
                raise BackendError(
                    f"None of the {len(search.lacking)} states of {self._model.label} was found in "
                    f"{self._name}. Is it an export of this model?"
                )
            self._ready[key] = _Ready(search, self._outputs(probe, expected))
            self._told = _told(search)
            booked = sum(self._seconds.values()) - before
            self._seconds["match"] = time.perf_counter() - start - booked
        return self._ready[key]

    @property
    def _name(self) -> str:
        return ", ".join(part.graph.path.name for part in self._parts.all)

    def _outputs(self, probe: Probe, expected: Mapping[str, Array]) -> dict[str, str]:
        """The model's outputs among the graph's: by name, else the only one that has the shape."""
        arrays = self._run(probe, ())
        found: dict[str, str] = {}
        for name, array in expected.items():
            named = [key for key in arrays if self._parts.split(key)[1] == name]
            shaped = [key for key in arrays if ranked(arrays[key], array) <= 1]
            close = [key for key in shaped if error(array, arrays[key].reshape(array.shape)) < 0.5]
            for keys in (named, close):
                if name not in found and len(keys) == 1 and keys[0] in shaped:
                    found[name] = keys[0]
        return found

    def _choose(self, probe: Probe, expected: Mapping[str, Array]) -> None:
        """Where a graph can be fed in several ways, take the one that gives the model's outputs."""
        handed: dict[str, Array] = {}
        chosen: list[int] = []
        for part in self._parts.all:
            options = feeds(part.graph.path.name, part.graph.inputs, part.takes(probe, handed))
            tried = self._tried(part, options)
            scores = [distance(given, expected) for given in tried]
            order = sorted(range(len(options)), key=lambda i: scores[i])
            if not guessed(options):
                order = [0, *order] if scores[0] <= MARGIN * max(scores[order[0]], 1e-6) else order
            elif not settles(tried, scores, order):
                raise BackendError(
                    f"The inputs of {part.graph.path.name} fit the probe in {len(options)} ways, "
                    "and no one of them gives the model's outputs. The graph takes "
                    f"{', '.join(map(str, part.graph.inputs[:8]))}; the probe has "
                    f"{', '.join(probe.inputs)}."
                )
            chosen.append(order[0])
            handed = _handed_on(tried[order[0]])
        self._chosen[probe.sha256] = chosen

    def _tried(self, part: Part, options: Sequence[Feed]) -> list[dict[str, Array]]:
        """What a graph gives for each way to feed it; a wrong one of several may well fail."""
        given: list[dict[str, Array]] = []
        for feed in options:
            try:
                given.append(self._given(self._plain(part), feed))
            except BackendError:
                if feed is options[-1] and not any(given):
                    raise
                given.append({})
        return given

    def _run(self, probe: Probe, keys: Iterable[str], level: str = "") -> dict[str, Array]:
        """Run every graph, the encoder's output into the decoder; arrays by their keys."""
        wanted: dict[int, list[str]] = {}
        for key in keys:
            part, tensor = self._parts.split(key)
            wanted.setdefault(self._parts.all.index(part), []).append(tensor)
        if probe.sha256 not in self._chosen:
            with TorchEager(Spec("torch", "cpu", "fp32"), self._model) as model:
                self._choose(probe, model.run(probe))
        found: dict[str, Array] = {}
        handed: dict[str, Array] = {}
        for number, part in enumerate(self._parts.all):
            session = (
                self._exposing(number, frozenset(wanted[number]), level)
                if number in wanted
                else self._plain(part)
            )
            given = self._given(session, self._feed_of(part, number, probe, handed))
            found |= {self._parts.key(part, name): array for name, array in given.items()}
            handed = _handed_on(given)
        return found

    def fed(self, probe: Probe) -> Iterator[tuple[Part, Feed]]:
        """Every graph with what it is given, in order; the encoder is run for the decoder."""
        handed: dict[str, Array] = {}
        for number, part in enumerate(self._parts.all):
            feed = self._feed_of(part, number, probe, handed)
            yield part, feed
            if number + 1 < len(self._parts.all):
                handed = _handed_on(self._given(self._plain(part), feed))

    def _feed_of(self, part: Part, number: int, probe: Probe, handed: Mapping[str, Array]) -> Feed:
        options = feeds(part.graph.path.name, part.graph.inputs, part.takes(probe, handed))
        return options[self._chosen[probe.sha256][number]]

    def _fetch(self, probe: Probe, keys: Sequence[str], sizes: frozenset[int]) -> list[Candidate]:
        """The values of many tensors, those of a state's size, some at a time."""
        found: list[Candidate] = []
        order = {key: place for place, key in enumerate(self._parts.floats)}
        for number, (part, feed) in enumerate(self.fed(probe)):
            mine = {name for own, name in map(self._parts.split, keys) if own is part}
            session = self._exposing(number, frozenset(mine), "off")
            plausible = [
                o.name
                for o in session.get_outputs()
                if o.type in FLOAT_KINDS and o.name in mine and _may_be(o.shape, sizes)
            ]
            for start in range(0, len(plausible), _AT_ONCE):
                names = plausible[start : start + _AT_ONCE]
                for name, array in self._given(session, feed, names).items():
                    if array.size in sizes:
                        key = self._parts.key(part, name)
                        place = order.get(key, len(order))
                        found.append(Candidate(key, array, place, self._parts.root(key)))
            del self._looked[number, frozenset(mine)]
        return sorted(found, key=lambda one: one.order)

    def _given(
        self, session: Any, feed: Feed, names: Sequence[str] | None = None
    ) -> dict[str, Array]:
        taken = {item.name for item in session.get_inputs()}
        return self._ask(session, names, {n: feed[n] for n in feed if n in taken}, self._name)

    def _plain(self, part: Part) -> Any:
        return self._session(part.graph.path)

    def _exposing(self, number: int, names: frozenset[str], level: str = "") -> Any:
        key = number, names
        if key not in self._looked:
            start = time.perf_counter()
            graph = self._parts.all[number].graph
            options = self._options(level)
            options.add_session_config_entry(BESIDE, str(graph.folder.resolve()))
            ordered = [name for name in graph.floats if name in names]
            self._looked[key] = self._made(graph.exposing(ordered), options)
            self._seconds["load"] = self._seconds.get("load", 0.0) + time.perf_counter() - start
        return self._looked[key]

    def _close(self) -> None:
        self._looked.clear()
        self._ready.clear()
        self._chosen.clear()
        self.__dict__.pop("_parts", None)
        super()._close()


def _existing(text: str) -> Path:
    path = Path(text)
    if not text or not path.exists():
        raise UsageError(f"file={text}: there is no such file or folder.")
    return path


def _handed_on(given: Mapping[str, Array]) -> dict[str, Array]:
    """What a decoder takes from an encoder: its first float output."""
    first = next((array for array in given.values() if floats(array)), None)
    return {} if first is None else {"encoder_hidden_states": first}


def _may_be(shape: Sequence[Any], sizes: frozenset[int]) -> bool:
    """Whether a tensor whose shape is partly known may have one of the sizes."""
    product = 1
    for dim in shape:
        product *= dim if isinstance(dim, int) else 1
    whole = all(isinstance(dim, int) for dim in shape)
    return product in sizes if whole else product > 0 and any(s % product == 0 for s in sizes)


def _told(search: Search) -> str:
    """In how many ways states were found, and why some were not."""
    ways = Counter(found.point.found for found in search.found)
    told = [f"{count} by {way}" for way, count in ways.items()]
    told += [f"{name} not found: {why}" for name, why in search.lacking.items()]
    return "; ".join(told)
