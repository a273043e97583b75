"""Finding a model's states among the tensors of a graph, while the model itself runs along.

The torch model is replayed, each block on the state that was just found in the graph. What a block
then makes is what the graph must have next, but for rounding, *however far the two have drifted
apart by then*: only a layer that is itself at fault gives something else. Such a layer's state is
found by looking ahead (`doubt`): the tensor is the right one if the blocks after it, run on it,
give what the graph has after it. Without that proof, a scope that says so, or blocks that repeat as
the model's do, a point stays missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from driftwalk.dtypes import Array
from driftwalk.states import Point, Probe, State

from ...matching import Arrangement, Candidate
from ...torch_eager import TorchEager
from ..parts import Parts
from .doubt import resolve
from .picks import OUTPUT_NAME, Limits, Pick, Picks
from .steering import Decide, Enough, steer

Fetch = Callable[[Sequence[str], frozenset[int]], list[Candidate]]
"""The values of tensors, by their keys, as far as they have one of the sizes."""


@dataclass(frozen=True)
class Found:
    """Where a point's state is in the graphs."""

    point: Point
    key: str
    arrangement: Arrangement


@dataclass(frozen=True)
class Search:
    """What a search gave: states in order of execution, and why there are no others."""

    found: tuple[Found, ...]
    lacking: Mapping[str, str]


class Finder:
    """One search: a model, a probe, and the graphs' tensors on that probe."""

    def __init__(
        self, model: TorchEager, probe: Probe, parts: Parts, fetch: Fetch, limits: Limits
    ) -> None:
        self._model = model
        self._probe = probe
        self._parts = parts
        self._fetch = fetch
        self._picks = Picks(probe, parts, limits)
        self._points: list[Point] = []
        self._lacking: dict[str, str] = {}

    def search(self) -> Search:
        """Find every point that can be found; by scopes alone where they hold."""
        sizes = self._sizes()
        scoped = self._picks.expect(self._points, self._model.layout)
        if scoped:
            self._picks.start(self._fetch([*scoped, *self._parts.outputs], sizes))
            self._replay(self._by_scope)
            if self._settled():
                return self._result()
        self._picks.start(self._fetch([*self._parts.floats, *self._parts.outputs], sizes))
        while (doubt := self._walk()) is not None:
            found = resolve(self._picks, self._points, self._replay, doubt)
            if isinstance(found, str):
                self._lacking[doubt.point.name] = found
            self._picks.decided[doubt.point.name] = None if isinstance(found, str) else found
        return self._result()

    def _sizes(self) -> frozenset[int]:
        """Run the model once: its points, and how large their states are."""
        sizes: set[int] = set()

        def note(state: State) -> None:
            self._points.append(state.point)
            sizes.add(math.prod(state.array.shape))

        self._model.stream(self._probe, note)
        return frozenset(sizes)

    def _replay(self, decide: Decide) -> None:
        steer(self._model, self._probe, decide)

    def _by_scope(self, state: State) -> Array | None:
        """Scopes alone: take what they name, and see how well it agrees."""
        pick = self._picks.output(state) or self._picks.scoped(state)
        self._picks.decided[state.point.name] = pick
        return None if pick is None else pick.hit.array

    def _settled(self) -> bool:
        """Every point is there, and each state that does not agree explains the one after it."""
        picks = [self._picks.decided.get(point.name) for point in self._points]
        known = [pick for pick in picks if pick is not None]
        following = [*known[1:], None]
        return len(known) == len(picks) and all(
            pick.sure or (after is not None and after.sure) or pick.way == OUTPUT_NAME
            for pick, after in zip(known, following, strict=True)
        )

    def _walk(self) -> State | None:
        """Decide point after point as far as values are clear; the first that is not comes back."""
        doubt: list[State] = []
        decided = self._picks.decided

        def decide(state: State) -> Array | None:
            name = state.point.name
            if name not in decided:
                pick = self._picks.output(state) or self._picks.clear(state)
                if pick is None:
                    doubt.append(state)
                    raise Enough
                decided[name] = pick
            known = decided[name]
            return None if known is None else known.hit.array

        self._replay(decide)
        return doubt[0] if doubt else None

    def _result(self) -> Search:
        found: list[Found] = []
        lacking: dict[str, str] = {}
        for point in self._points:
            pick: Pick | None = self._picks.decided.get(point.name)
            if pick is None:
                why = self._lacking.get(point.name, "no tensor of the graph agrees with it")
                lacking[point.name] = why
            else:
                key, named = pick.hit.candidate.name, replace(point, found=pick.way)
                found.append(Found(named, key, pick.hit.arrangement))
        return Search(tuple(found), lacking)
