"""Sizes of open axes that a graph runs with, found by trying.

The graph is run as written, its nodes numbered. Where a node refuses what it is given, it says what
to try next: the sizes of the tensors stored for it (an LSTM, a convolution, a product want so many
columns), then each open axis twice as long, and twice again (a reflecting pad, a pool, a spectrum
want so many elements at least), at last every length there is up to a few hundred (a reshape behind
convolutions wants one and no other). What gets farthest is followed first. All of it is bounded.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from driftwalk.errors import ProbeError

from ..graph import Arrays, OnnxGraph
from ..sessions import quick_session
from ..shapes import tensor_bytes
from .defaults import Sizes, every_node

MOST_TRIES = 600
MOST_SECONDS = 20.0
LONGEST = 1 << 15
"""The most elements that an open axis is made long, unless the graph itself names more."""
MOST_BYTES = 1 << 27
"""Of one tensor, as far as that is known before a try."""

_NAME = "driftwalk-node-"
_NUMBERED = re.compile(rf"{_NAME}(\d+)")
_ONE_BY_ONE = 256
_SMALL = 64
_MOST_TEXT = 600
_WHERE = re.compile(r"/\S+\.(?:cc|h):\d+ .*? was false\. ?|\S+\.(?:cc|h):\d+ \S+ ")
"""Where in its own source ONNX Runtime gave up."""
_BACK = 3
"""How many nodes before the one that fails are asked for stored sizes."""


@dataclass(frozen=True)
class Failure:
    """Where a run ended, and what was said of it."""

    at: int
    """The number of the node, in the order of the file; -1 where none is named."""
    text: str


@dataclass(frozen=True)
class Fed:
    """Sizes that a graph runs with, and what was said of those that it was first given."""

    sizes: Sizes
    refused: Failure | None
    tries: int


class Trial:
    """A graph as written, to be run on one input after another."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self._nodes = list(every_node(graph.proto.graph))
        self._stored = dict(_stored(graph))
        self._makers = {name: node for node in self._nodes for name in node.output if name}
        self._session = quick_session(self._numbered(), graph.path.parent)

    def _numbered(self) -> bytes:
        names = [node.name for node in self._nodes]
        try:
            for number, node in enumerate(self._nodes):
                node.name = f"{_NAME}{number}"
            data: bytes = self.graph.proto.SerializeToString()
        finally:
            for node, name in zip(self._nodes, names, strict=True):
                node.name = name
        return data

    def failure(self, feed: Mapping[str, Any]) -> Failure | None:
        """What keeps the graph from running; None where it runs."""
        try:
            self._session.run(None, dict(feed))
        except Exception as error:  # ONNX Runtime's errors share no base class but Exception
            text = _WHERE.sub("", " ".join(str(error).split()))[:_MOST_TEXT]
            numbers = [int(number) for number in _NUMBERED.findall(str(error))]
            text = _NUMBERED.sub(lambda hit: self._label(int(hit[1])), text)
            return Failure(numbers[-1] if numbers else -1, text)
        return None

    def gives_numbers(self, feed: Mapping[str, Any]) -> bool:
        """Whether no float of its outputs is NaN or infinite."""
        given = (np.asarray(one) for one in self._session.run(None, dict(feed)))
        return all(one.dtype.kind != "f" or bool(np.isfinite(one).all()) for one in given)

    def _label(self, number: int) -> str:
        node = self._nodes[number]
        return node.name or f"{node.op_type} \u2192 {next(iter(node.output), '')}"

    def wants(self, at: int) -> list[int]:
        """Sizes that the tensors stored for a node have, or name; the nearest first."""
        found: dict[int, None] = {}
        nodes = [self._nodes[at]] if at >= 0 else []
        for _ in range(_BACK):
            names = [name for node in nodes for name in node.input]
            for tensor in (self._stored[name] for name in names if name in self._stored):
                found |= dict.fromkeys(_sizes_in(tensor))
            for node in nodes:
                group = next((a.i for a in node.attribute if a.name == "group"), 1)
                weights = self._stored.get(node.input[1]) if len(node.input) > 1 else None
                if group > 1 and weights is not None and len(weights.dims) > 1:
                    found |= {group * weights.dims[1]: None}
            nodes = [self._makers[name] for name in names if name in self._makers]
        return list(found)


def _stored(graph: OnnxGraph) -> Iterator[tuple[str, Any]]:
    yield from graph.weights.items()
    for node in every_node(graph.proto.graph):
        if node.op_type == "Constant":
            yield from ((node.output[0], a.t) for a in node.attribute if a.name == "value")
        for attribute in node.attribute:
            yield from ((tensor.name, tensor) for tensor in attribute.g.initializer)


def _sizes_in(tensor: Any) -> Iterator[int]:
    from onnx import numpy_helper

    yield from (size for size in tensor.dims if 0 < size <= LONGEST)
    size = 1
    for dim in tensor.dims:
        size *= dim
    if size <= _SMALL and tensor.data_type in (6, 7) and not tensor.external_data:
        numbers = numpy_helper.to_array(tensor).reshape(-1)
        yield from (int(number) for number in numbers if 0 < number <= LONGEST)


@dataclass(eq=False)
class Search:
    """Looks for sizes that a graph runs with, best first."""

    trial: Trial
    make: Callable[[Sizes], Arrays]
    """All inputs of the graph, for some sizes."""
    rows: frozenset[str]
    """Axes that are likely to count rows: made longer last."""
    tries: int = 0
    _seen: set[object] = field(default_factory=set)
    _started: float = field(default_factory=time.perf_counter)

    def found(self, start: Sizes) -> Fed:
        """Sizes that the graph runs with; where there are none, an error says what it wants."""
        first = self._tried(start)
        if first is None:
            return Fed(start, None, self.tries)
        best = start, first
        queue, count = [(-first.at, 0, start, first)], 0
        while queue and not self._spent(0.5):
            _, _, sizes, failure = heapq.heappop(queue)
            for proposal, again in self._outcomes(sizes, failure):
                if again is None:
                    return Fed(proposal, first, self.tries)
                count += 1
                heapq.heappush(queue, (-again.at, count, proposal, again))
                best = (proposal, again) if again.at > best[1].at else best
        for proposal in self._one_by_one(best[0]):
            if self._tried(proposal) is None:
                return Fed(proposal, first, self.tries)
        raise UnfedError(best[1], self.tries)

    def _spent(self, share: float = 1.0) -> bool:
        taken = time.perf_counter() - self._started
        return self.tries >= share * MOST_TRIES or taken > share * MOST_SECONDS

    def _outcomes(self, sizes: Sizes, failure: Failure) -> Iterator[tuple[Sizes, Failure | None]]:
        """Sizes near some that failed, each with what came of it."""
        for proposal in self._named(sizes, failure):
            if proposal.key not in self._seen and not self._spent(0.5) and self._is_small(proposal):
                yield proposal, self._tried(proposal)
        lengths = [key for key in sizes.axes if key not in self.rows]
        rows = [key for key in sizes.axes if key in self.rows]
        for keys in (*([key] for key in lengths), lengths, *([key] for key in rows)):
            for proposal in self._longer(sizes, keys):
                if self._spent(0.5) or not self._is_small(proposal):
                    break
                if proposal.key in self._seen:
                    continue
                again = self._tried(proposal)
                if again is None or again.at > failure.at:
                    yield proposal, again
                    break

    def _named(self, sizes: Sizes, failure: Failure) -> Iterator[Sizes]:
        for wanted in self.trial.wants(failure.at):
            for key in sizes.axes:
                yield replace(sizes, axes={**sizes.axes, key: wanted})

    def _one_by_one(self, sizes: Sizes) -> Iterator[Sizes]:
        lengths = [key for key in sizes.axes if key not in self.rows]
        for key in lengths or sizes.axes:
            for size in range(1, _ONE_BY_ONE + 1):
                proposal = replace(sizes, axes={**sizes.axes, key: size})
                if proposal.key not in self._seen and not self._spent():
                    yield proposal

    @staticmethod
    def _longer(sizes: Sizes, keys: Sequence[str]) -> Iterator[Sizes]:
        factor = 2
        while keys and all(max(sizes.axes[key], 1) * factor <= LONGEST for key in keys):
            longer = {key: max(sizes.axes[key], 1) * factor for key in keys}
            yield replace(sizes, axes={**sizes.axes, **longer})
            factor *= 2

    def _is_small(self, sizes: Sizes) -> bool:
        try:
            feed = self.make(sizes)
        except ProbeError:  # too many elements
            return False
        return max(tensor_bytes(self.trial.graph, feed).values(), default=0) <= MOST_BYTES

    def _tried(self, sizes: Sizes) -> Failure | None:
        self.tries += 1
        self._seen.add(sizes.key)
        return self.trial.failure(self.make(sizes))


class UnfedError(Exception):
    """No sizes were found that a graph runs with."""

    def __init__(self, failure: Failure, tries: int) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.tries = tries
