"""The graphs of a model run one after the other: what an encoder gives, its decoder takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.states import Probe

from ..matching import Candidate
from .feeds import Feed, feeds
from .outputs import choose, is_float
from .parts import Part, Parts
from .sessions import Sessions
from .values import FLOAT_KINDS, WHOLE_KINDS

_AT_ONCE = 128
"""Tensors fetched in one run while states are looked for: what bounds the memory of it."""


class Runs:
    """Runs of a model's graphs; a tensor is known by its key (`Parts.key`)."""

    def __init__(
        self, parts: Parts, sessions: Sessions, model: Callable[[Probe], Mapping[str, Array]]
    ) -> None:
        self._parts = parts
        self._sessions = sessions
        self._model = model
        """What the torch model gives: by it a way to feed the graphs is chosen."""
        self._chosen: dict[str, list[int]] = {}
        self._kept: dict[tuple[int, frozenset[str]], Any] = {}

    def choose(self, probe: Probe, expected: Mapping[str, Array]) -> None:
        """Where a graph can be fed in several ways, take the one that gives the model's outputs."""
        handed: dict[str, Array] = {}
        chosen: list[int] = []
        for part in self._parts.all:
            options = _feeds(part, probe, handed)
            tried = self._tried(part, options)
            best = choose(options, tried, expected)
            if best is None:
                raise BackendError(
                    f"The inputs of {part.graph.path.name} fit the probe in {len(options)} ways, "
                    "and no one of them gives the model's outputs. The graph takes "
                    f"{', '.join(map(str, part.graph.inputs[:8]))}; the probe has "
                    f"{', '.join(probe.inputs)}."
                )
            chosen.append(best)
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
        wanted: dict[int, set[str]] = {}
        for key in keys:
            part, tensor = self._parts.split(key)
            wanted.setdefault(self._parts.all.index(part), set()).add(tensor)
        found: dict[str, Array] = {}
        handed: dict[str, Array] = {}
        for number, part in enumerate(self._parts.all):
            feed = self._feed(part, number, probe, handed)
            if number in wanted:
                session = self._exposed(part, number, frozenset(wanted[number]))
                given = self._ask(session, feed)
            else:
                given = self._plain(part, feed)
            found |= {self._parts.key(part, name): array for name, array in given.items()}
            handed = _handed_on(given)
        return found

    def fed(self, probe: Probe) -> Iterator[tuple[Part, Feed]]:
        """Every graph with what it is given, in order; the encoder is run for the decoder."""
        handed: dict[str, Array] = {}
        for number, part in enumerate(self._parts.all):
            feed = self._feed(part, number, probe, handed)
            yield part, feed
            if number + 1 < len(self._parts.all):
                handed = _handed_on(self._plain(part, feed))

    def fetch(self, probe: Probe, keys: Sequence[str], sizes: frozenset[int]) -> list[Candidate]:
        """The values of many tensors, those of a state's size; some at a time, not optimised."""
        found: list[Candidate] = []
        order = {key: place for place, key in enumerate(self._parts.floats)}
        for part, feed in self.fed(probe):
            mine = {name for own, name in map(self._parts.split, keys) if own is part}
            session = self._exposing(part, mine, "off")
            plausible = [
                o.name
                for o in session.get_outputs()
                if o.type in (*FLOAT_KINDS, *WHOLE_KINDS)
                and o.name in mine
                and _may_be(o.shape, sizes)
            ]
            for start in range(0, len(plausible), _AT_ONCE):
                names = plausible[start : start + _AT_ONCE]
                for name, array in self._ask(session, feed, names).items():
                    if array.size in sizes:
                        key = self._parts.key(part, name)
                        place = order.get(key, len(order))
                        found.append(Candidate(key, array, place, self._parts.root(key)))
        return sorted(found, key=lambda one: one.order)

    def _feed(self, part: Part, number: int, probe: Probe, handed: Mapping[str, Array]) -> Feed:
        if probe.sha256 not in self._chosen:
            self.choose(probe, self._model(probe))
        return _feeds(part, probe, handed)[self._chosen[probe.sha256][number]]

    def _plain(self, part: Part, feed: Feed) -> dict[str, Array]:
        return self._ask(self._sessions.of(part.graph.path), feed)

    def _exposed(self, part: Part, number: int, names: frozenset[str]) -> Any:
        if (number, names) not in self._kept:
            self._kept[number, names] = self._exposing(part, names)
        return self._kept[number, names]

    def _exposing(self, part: Part, names: Collection[str], level: str = "") -> Any:
        ordered = [name for name in part.graph.floats if name in names]
        return self._sessions.exposing(part.graph, ordered, level)

    def _ask(self, session: Any, feed: Feed, names: Sequence[str] | None = None) -> dict[str, Any]:
        """What a session gives, for as much of the feed as it takes."""
        taken = {item.name for item in session.get_inputs()}
        fitting = {name: feed[name] for name in feed if name in taken}
        return self._sessions.ask(session, names, fitting, self._parts.label)


def _feeds(part: Part, probe: Probe, handed: Mapping[str, Array]) -> list[Feed]:
    return feeds(part.graph.path.name, part.graph.inputs, part.takes(probe, handed))


def _handed_on(given: Mapping[str, Array]) -> dict[str, Array]:
    """What a decoder takes from an encoder: its first float output."""
    first = next((array for array in given.values() if is_float(array)), None)
    return {} if first is None else {"encoder_hidden_states": first}


def _may_be(shape: Sequence[Any], sizes: frozenset[int]) -> bool:
    """Whether a tensor whose shape is partly known may have one of the sizes."""
    product = 1
    for dim in shape:
        product *= dim if isinstance(dim, int) else 1
    whole = all(isinstance(dim, int) for dim in shape)
    return product in sizes if whole else product > 0 and any(s % product == 0 for s in sizes)
