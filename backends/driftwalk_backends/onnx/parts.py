"""The graphs of one model, and their runs: a single file, or an encoder's and a decoder's.

They run one after the other: what an encoder gives, its decoder takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.states import Point, Probe

from ..matching import Candidate
from .backend import Sessions
from .feeds import Feed, choose, feeds, is_float
from .graph import COPIES, FLOAT_KINDS, WHOLE_KINDS, Arrays, OnnxGraph
from .reading import read_graph
from .structure import Scopes, cuts, repeated, scopes_of

_SINGLE = "model.onnx"
_ENCODER = "encoder_model.onnx"
_DECODERS = ("decoder_model.onnx", "decoder_model_merged.onnx")
_AT_ONCE = 128
"""Tensors fetched in one run while states are looked for: what bounds the memory of it."""


@dataclass(frozen=True)
class Part:
    """One graph and the half of the model it is: `encoder`, `decoder`, or empty for the whole."""

    graph: OnnxGraph
    role: str = ""

    @cached_property
    def scopes(self) -> tuple[Scopes, ...]:
        return scopes_of(self.graph)

    def serves(self, point: str) -> bool:
        return not self.role or (self.role == "encoder") == point.startswith("encoder.")

    def feeds(self, probe: Probe, handed_on: Arrays) -> list[Feed]:
        """Every way to feed this graph: the probe, under the names that a half of a model has."""
        probe.refuse_others(f"The graph {self.graph.path.name}")
        given = dict(probe.inputs)
        if self.role:
            mine = {n: a for n, a in probe.inputs.items() if n.startswith("decoder_")}
            given = {n: a for n, a in probe.inputs.items() if n not in mine}
        if self.role == "decoder":
            taken = {value.name for value in self.graph.inputs}
            named = {f"encoder_{n}": a for n, a in given.items()} | dict(handed_on)
            given = {name.removeprefix("decoder_"): array for name, array in mine.items()}
            given |= {n: a for n, a in named.items() if n in taken}
        return feeds(self.graph.path.name, self.graph.inputs, given)


class Parts:
    """All graphs of a model; a tensor's key is the number of its graph before its name."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.all = tuple(parts)

    @property
    def graphs(self) -> tuple[OnnxGraph, ...]:
        return tuple(part.graph for part in self.all)

    @property
    def label(self) -> str:
        return ", ".join(graph.path.name for graph in self.graphs)

    def keys(self, part: Part, tensors: Iterable[str]) -> tuple[str, ...]:
        number = self.all.index(part)
        return tuple(f"{number}:{tensor}" for tensor in tensors)

    def split(self, key: str) -> tuple[Part, str]:
        number, _, tensor = key.partition(":")
        return self.all[int(number)], tensor

    def of(self, point: str) -> Part:
        return next(part for part in self.all if part.serves(point))

    @cached_property
    def floats(self) -> tuple[str, ...]:
        return tuple(key for part in self.all for key in self.keys(part, part.graph.floats))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        named = [(part, [value.name for value in part.graph.outputs]) for part in self.all]
        return tuple(key for part, names in named for key in self.keys(part, names))

    def depends(self, later: str, earlier: str) -> bool:
        (here, a), (there, b) = self.split(later), self.split(earlier)
        return here is there and here.graph.depends(a, b)

    def root(self, key: str) -> str:
        """The tensor that another is only a copy, a cast or a reshape of."""
        part, name = self.split(key)
        graph = part.graph
        while (made := graph.maker(name)) is not None and made.op in COPIES:
            if not made.inputs or made.inputs[0] not in graph.producers:
                break
            name = made.inputs[0]
        return self.keys(part, [name])[0]

    def cuts(self, point: str, after: str | None) -> tuple[str, ...]:
        """The narrow places of a point's graph, from a tensor on."""
        part = self.of(point)
        start = self.split(after)[1] if after is not None else None
        return self.keys(part, cuts(part.graph, start))

    def repeated(self, after: str, times: int) -> tuple[str, ...]:
        """The ends of so many equal blocks behind a tensor, or none."""
        part, start = self.split(after)
        return self.keys(part, repeated(part.graph, start, times))

    def scoped(self, point: Point) -> tuple[tuple[str, ...], str]:
        """The tensors that a graph's scopes say may be this point's state, and which way it was."""
        part = self.of(point.name)
        for scopes in part.scopes:
            if names := scopes.leaving(point):
                return self.keys(part, names), scopes.way
        return (), ""


def open_parts(path: Path) -> Parts:
    """The graphs at a path: a file, or a folder as optimum writes it."""
    if not path.is_dir():
        return Parts([Part(read_graph(path))])
    decoder = next((path / name for name in _DECODERS if (path / name).is_file()), None)
    if (path / _ENCODER).is_file() and decoder is not None:
        encoder = Part(read_graph(path / _ENCODER), "encoder")
        return Parts([encoder, Part(read_graph(decoder), "decoder")])
    names = sorted(file.name for file in path.glob("*.onnx"))
    single = [_SINGLE] if (path / _SINGLE).is_file() else names
    if len(single) != 1:
        has = f"It has {', '.join(names[:8])}." if names else "It has no .onnx file at all."
        raise UsageError(
            f"Folder {str(path)!r} has neither {_SINGLE} nor {_ENCODER} with {_DECODERS[0]}. "
            f"{has} Name the file: file=PATH."
        )
    return Parts([Part(read_graph(path / single[0]))])


@dataclass(eq=False)
class Runs:
    """Runs of a model's graphs; a tensor is known by its key (`Parts.keys`)."""

    parts: Parts
    sessions: Sessions
    model: Callable[[Probe], Arrays]
    """What the torch model gives: by it a way to feed the graphs is chosen."""
    _chosen: dict[str, dict[Part, int]] = field(default_factory=dict)

    def choose(self, probe: Probe, expected: Arrays) -> None:
        """Where a graph can be fed in several ways, take the one that gives the model's outputs."""
        handed: dict[str, Array] = {}
        chosen: dict[Part, int] = {}
        for part in self.parts.all:
            options = part.feeds(probe, handed)
            tried = self._tried(part, options)
            best = choose(options, tried, expected)
            if best is None:
                raise BackendError(
                    f"The inputs of {part.graph.path.name} fit the probe in {len(options)} ways, "
                    "and no one of them gives the model's outputs. The graph takes "
                    f"{', '.join(map(str, part.graph.inputs[:8]))}; the probe has "
                    f"{', '.join(probe.inputs)}."
                )
            chosen[part] = best
            handed = _handed_on(tried[best])
        self._chosen[probe.sha256] = chosen

    def _tried(self, part: Part, options: Sequence[Feed]) -> list[dict[str, Array]]:
        """What a graph gives for each way to feed it; a wrong one of several may well fail."""
        given: list[dict[str, Array]] = []
        for feed in options:
            try:
                given.append(self._plain(part, feed))
            except BackendError:
                if feed is options[-1] and not any(given):
                    raise
                given.append({})
        return given

    def run(self, probe: Probe, keys: Iterable[str]) -> dict[str, Array]:
        """One run of every graph: its outputs, and the tensors that were asked for."""
        wanted: dict[Part, set[str]] = {}
        for part, tensor in map(self.parts.split, keys):
            wanted.setdefault(part, set()).add(tensor)
        found: dict[str, Array] = {}
        handed: dict[str, Array] = {}
        for part in self.parts.all:
            feed = self._feed(part, probe, handed)
            if part in wanted:
                session = self.sessions.exposing(part.graph, wanted[part], keep=True)
                given = self._ask(session, feed)
            else:
                given = self._plain(part, feed)
            found |= zip(self.parts.keys(part, given), given.values(), strict=True)
            handed = _handed_on(given)
        return found

    def fed(self, probe: Probe) -> Iterator[tuple[Part, Feed]]:
        """Every graph with what it is given, in order; the encoder is run for the decoder."""
        handed: dict[str, Array] = {}
        for part in self.parts.all:
            feed = self._feed(part, probe, handed)
            yield part, feed
            if part is not self.parts.all[-1]:
                handed = _handed_on(self._plain(part, feed))

    def fetch(self, probe: Probe, keys: Sequence[str], sizes: frozenset[int]) -> list[Candidate]:
        """The values of many tensors, those of a state's size; some at a time, not optimised."""
        found: list[Candidate] = []
        order = {key: place for place, key in enumerate(self.parts.floats)}
        for part, feed in self.fed(probe):
            mine = {name for own, name in map(self.parts.split, keys) if own is part}
            session = self.sessions.exposing(part.graph, mine, "off")
            plausible = [
                o.name
                for o in session.get_outputs()
                if o.type in (*FLOAT_KINDS, *WHOLE_KINDS)
                and o.name in mine
                and _may_be(o.shape, sizes)
            ]
            for start in range(0, len(plausible), _AT_ONCE):
                given = self._ask(session, feed, plausible[start : start + _AT_ONCE])
                for key, array in zip(self.parts.keys(part, given), given.values(), strict=True):
                    if array.size in sizes:
                        place = order.get(key, len(order))
                        found.append(Candidate(key, array, place, self.parts.root(key)))
        return sorted(found, key=lambda one: one.order)

    def _feed(self, part: Part, probe: Probe, handed: Arrays) -> Feed:
        if probe.sha256 not in self._chosen:
            self.choose(probe, self.model(probe))
        return part.feeds(probe, handed)[self._chosen[probe.sha256][part]]

    def _plain(self, part: Part, feed: Feed) -> dict[str, Array]:
        return self._ask(self.sessions.of(part.graph.path), feed)

    def _ask(self, session: Any, feed: Feed, names: Sequence[str] | None = None) -> dict[str, Any]:
        return self.sessions.ask(session, names, feed, self.parts.label)


def _handed_on(given: Arrays) -> dict[str, Array]:
    """What a decoder takes from an encoder: its first float output."""
    first = next((array for array in given.values() if is_float(array)), None)
    return {} if first is None else {"encoder_hidden_states": first}


def _may_be(shape: Sequence[Any], sizes: frozenset[int]) -> bool:
    """Whether a tensor whose shape is partly known may have one of the sizes."""
    known = [dim for dim in shape if isinstance(dim, int)]
    product = math.prod(known)
    if len(known) == len(shape):
        return product in sizes
    return product > 0 and any(size % product == 0 for size in sizes)
