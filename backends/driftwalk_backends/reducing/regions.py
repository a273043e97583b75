"""The part of a graph that makes a guilty point, and whose fault it is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from driftwalk.dtypes import Array
from driftwalk.errors import BackendError

from ..onnx.backend import Sessions
from ..onnx.graph import OnnxGraph
from ..onnx.sessions import quick_session
from ..onnx.wide.flat import flat
from ..onnx.wide.truth import GraphTruth
from .changes import Table, trimmed
from .constants import DRIFT_LIMIT
from .cuts import Cut, Cutting, recorded
from .graph_runs import GraphJudge, wide
from .graphs import GraphSubject
from .right import Right
from .states import State

Numbers = dict[str, Array]


@dataclass(frozen=True, eq=False)
class Opened:
    """A cut as a whole, and how to make smaller ones of it."""

    cut: Cut
    cutting: Cutting
    exact: Numbers
    """What it is given, unrounded."""
    tables: Mapping[str, Table]


class Region:
    """The nodes of a graph between the states before a point and that point's tensor."""

    def __init__(
        self,
        graph: OnnxGraph,
        feed: Mapping[str, Any],
        tensors: Mapping[str, str],
        point: str,
        states: Mapping[str, Array],
        true: Mapping[str, Array] | None = None,
    ) -> None:
        """`tensors` are those of points, by the point's name; `states` are given for the cut.

        `true` are the same in float64, where they are right.
        """
        folder = graph.path.parent
        self.whole = OnnxGraph(graph.path, flat(graph.proto, folder, feed))
        self.target = tensors[point]
        if self.target not in self.whole.producers:
            raise BackendError(f"No node of {graph.path.name} makes the point {point!r}.")
        self._begins = self._at(tensors, states, point)
        self._true = None if true is None else self._at(tensors, true, point)
        self._feed = feed

    @staticmethod
    def _at(
        tensors: Mapping[str, str], states: Mapping[str, Array], point: str
    ) -> dict[str, Array]:
        return {t: states[name] for name, t in tensors.items() if name in states and name != point}

    def opened(self, bounded: bool, constants: bool = False) -> Opened:
        """The part of the graph as a whole; tables have only the rows that are looked up.

        With `constants`, nodes that only make constants are in it: a runtime may do something else
        with what they are made of, as with weights of four bits.
        """
        ends = self._begins if bounded else {}
        outside = Cutting(self.whole, {n: np.asarray(a) for n, a in self._feed.items()})
        numbers = outside.between(self.target, ends, constants)
        loose = self._loose(numbers)
        values = dict(self._recorded([name for name in loose if name not in ends]))
        values |= {name: array for name, array in ends.items() if name in loose}
        cut, tables = trimmed(Cutting(self.whole, values).cut(numbers, self.target))
        exact = {} if self._true is None else self._unrounded(cut, ends)
        inner = OnnxGraph(Path("region.onnx"), cut.model())
        every = tuple(inner.producers)
        inside = recorded(inner, cut.given, wide(cut, exact, every))
        return Opened(cut, Cutting(inner, {**inside, **cut.stored}), exact, tables)

    def _unrounded(self, cut: Cut, ends: Collection[str]) -> Numbers:
        """What a cut is given: right states, and between those the graph's own in float64."""
        assert self._true is not None
        known = {n: self._true[n] for n in cut.given if n in ends and n in self._true}
        floats = [n for n, array in cut.given.items() if array.dtype.kind == "f"]
        others = [n for n in floats if n not in known and n in self.whole.producers]
        try:
            return known | (GraphTruth(self.whole, self._feed).tensors(others) if others else {})
        except BackendError:  # too large for that: as it is rounded
            return known

    def _loose(self, numbers: Sequence[int]) -> list[str]:
        among = set(numbers)
        used = dict.fromkeys(n for i in numbers for n in self.whole.nodes[i].inputs)
        return [n for n in used if self.whole.producers.get(n, -1) not in among]

    def _recorded(self, names: Sequence[str]) -> Iterator[tuple[str, Array]]:
        """Tensors outside the region, as the graph has them when it runs as written."""
        asked = [name for name in names if name in self.whole.producers]
        if asked:
            session = quick_session(self.whole.exposing(asked), self.whole.path.parent)
            taken = {value.name: self._feed[value.name] for value in session.get_inputs()}
            yield from zip(asked, map(np.asarray, session.run(asked, taken)), strict=True)
        for name in names:
            if name in self._feed:
                yield name, np.asarray(self._feed[name])


def start_of(
    graph: OnnxGraph,
    feed: Mapping[str, Any],
    tensors: Mapping[str, str],
    point: str,
    candidate: Mapping[str, Array],
    truth: Mapping[str, Array],
    right: Right | None,
    sessions: Sessions,
) -> tuple[GraphSubject, State]:
    """Whose fault it is, and the region that shows it; refused where no region does."""
    judge = GraphJudge(sessions)
    wrongs: list[tuple[float, GraphSubject, State]] = []
    for constants, bounded in product((False, True), (True, False)):
        region = Region(graph, feed, tensors, point, candidate)
        opened = region.opened(bounded, constants)
        subject = GraphSubject(opened.cut, opened.cutting, judge, None)
        if (state := subject.start()) is not None:
            wrongs.append((state.shown.clearest, subject, state))
        if right is not None and point in truth:
            narrow = {n: _as_in(truth[n], candidate.get(n)) for n in truth}
            region = Region(graph, feed, tensors, point, narrow, truth)
            opened = region.opened(bounded, constants)
            subject = GraphSubject(
                opened.cut, opened.cutting, judge, right, opened.exact, opened.tables
            )
            if (state := subject.start(truth[point])) is not None:
                wrongs.append((state.shown.clearest, subject, state))
        if any(ratio > DRIFT_LIMIT for ratio, _, _ in wrongs):
            break
    if not wrongs:
        raise BackendError(no_drift(point))
    _, subject, state = max(wrongs, key=lambda one: one[0])
    return subject, state


def no_drift(point: str) -> str:
    """What to say where nothing that was taken out drifts."""
    return (
        f"The nodes that make {point} show no drift when they are run alone: it is at most "
        f"{DRIFT_LIMIT:g} times what honest arithmetic is off by. It takes more of the graph to "
        "show it, or it is a drift that is close to its allowance."
    )


def _as_in(array: Array, like: Array | None) -> Array:
    kind = np.float32 if like is None else like.dtype
    with np.errstate(over="ignore"):
        return array.astype(kind) if array.dtype.kind == "f" else array
