"""Finding a model's states among the tensors of a graph, while the model itself runs along.

Whatever names the graph has or lacks, a state is taken for found only if its numbers prove it, its
scope says so, or the graph repeats just as the model does.

The torch model is replayed, each block on the state that was just found in the graph. What a block
then makes is what the graph must have next, but for rounding, *however far the two have drifted
apart by then*: only a layer that is itself at fault gives something else. The state of such a layer
is in doubt, and every tensor that it may be is tried: the right one is that from which the model
goes on as the graph does. Without such a proof, a scope that was never wrong decides, then blocks
that repeat as often as the model's do; else the point stays missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from driftwalk.dtypes import Array
from driftwalk.names import EMBED, in_stack, is_on_stream, layer_of, stack_of
from driftwalk.states import Point, Probe, State

from ..constants import LEAST_MATCH_ERROR, MATCH_MARGIN, MATCH_RIVALS, POINTS_AHEAD
from ..matching import Arrangement, Candidate, Hit, distinct
from ..torch_eager import TorchEager
from .parts import Parts
from .picks import OUTPUT_NAME, VALUE, Enough, Pick, Picks, steer
from .structure import STRUCTURE

Fetch = Callable[[Sequence[str], frozenset[int]], list[Candidate]]
"""The values of tensors, by their keys, as far as they have one of the sizes."""


@dataclass(frozen=True)
class Found:
    """Where a point's state is in the graphs."""

    point: Point
    key: str
    arrangement: Arrangement


class Finder:
    """One search: a model, a probe, and the graphs' tensors on that probe."""

    def __init__(self, model: TorchEager, probe: Probe, parts: Parts, fetch: Fetch) -> None:
        self._model = model
        self._probe = probe
        self._parts = parts
        self._fetch = fetch
        self._picks = Picks(probe, parts)
        self._points: list[Point] = []
        self.lacking: dict[str, str] = {}
        """Why there is no state, for each point without one, after a search."""

    def search(self) -> tuple[Found, ...]:
        """Find what points can be found, in order of execution; by scopes alone where they hold."""
        with self._model.in_a_row():
            return self._searched()

    def _searched(self) -> tuple[Found, ...]:
        sizes = self._sizes()
        scoped = self._picks.expect(self._points, self._model.layout)
        if scoped:
            self._picks.start(self._fetch([*scoped, *self._parts.outputs], sizes))
            steer(self._model, self._probe, self._by_scope)
            if self._settled():
                return self._result()
        self._picks.start(self._fetch([*self._parts.floats, *self._parts.outputs], sizes))
        while (doubt := self._walk()) is not None:
            resolved, name = self._resolve(doubt), doubt.point.name
            if isinstance(resolved, str):
                self.lacking[name] = resolved
            self._picks.decided[name] = None if isinstance(resolved, str) else resolved
        return self._result()

    def _sizes(self) -> frozenset[int]:
        """Run the model once: its points, and how large their states are."""
        sizes: set[int] = set()

        def note(state: State) -> None:
            self._points.append(state.point)
            sizes.add(math.prod(state.array.shape))

        self._model.stream(self._probe, note)
        return frozenset(sizes)

    def _by_scope(self, state: State) -> Array | None:
        """Scopes alone: take what they name, and see how well it agrees."""
        name = state.point.name
        self._picks.decided[name] = self._picks.output(state) or self._picks.scoped(state)
        return self._picks.array(name)

    def _settled(self) -> bool:
        """Every point is there, and each state that does not agree explains the one after it."""
        decided = [self._picks.decided.get(point.name) for point in self._points]
        picks = [pick for pick in decided if pick is not None]
        return len(picks) == len(decided) and all(
            pick.sure or (after is not None and after.sure) or pick.way == OUTPUT_NAME
            for pick, after in zip(picks, [*picks[1:], None], strict=True)
        )

    def _walk(self) -> State | None:
        """Decide point after point as far as values are clear; the first that is not comes back."""
        doubt: State | None = None

        def decide(state: State) -> Array | None:
            nonlocal doubt
            name = state.point.name
            if name not in self._picks.decided:
                pick = self._picks.output(state) or self._picks.clear(state)
                if pick is None:
                    doubt = state
                    raise Enough
                self._picks.decided[name] = pick
            return self._picks.array(name)

        steer(self._model, self._probe, decide)
        return doubt

    def _result(self) -> tuple[Found, ...]:
        found: list[Found] = []
        for point in self._points:
            pick = self._picks.decided.get(point.name)
            if pick is None:
                self.lacking.setdefault(point.name, "no tensor of the graph agrees with it")
            else:
                key, named = pick.hit.candidate.name, replace(point, found=pick.way)
                found.append(Found(named, key, pick.hit.arrangement))
        return tuple(found)

    def _resolve(self, doubt: State) -> Pick | str:
        """What the doubtful state is; or a sentence on why nobody can say."""
        picks = self._picks
        scoped = picks.scoped(doubt)
        rivals = self._rivals(doubt, scoped)
        if scoped is not None and len(rivals) == 1 and not picks.distrusted:
            return scoped
        winner = self._proven(doubt, [(self._ahead(doubt, hit), hit) for hit in rivals])
        if winner is not None:
            own = scoped is not None and winner.same_as(scoped.hit)
            return Pick(winner, scoped.way if own and scoped is not None else VALUE, False)
        if scoped is not None and not picks.distrusted:
            return scoped
        if (repeated := self._by_repetition(doubt)) is not None:
            return repeated
        if not rivals:
            return "no tensor of the graph has its shape"
        return f"{len(rivals)} tensors of the graph may be this state, and none is clearly it"

    def _rivals(self, doubt: State, scoped: Pick | None) -> list[Hit]:
        """The closest tensors and the narrow places; beside a scope's only what is far closer."""
        name, picks = doubt.point.name, self._picks
        rivals = distinct(picks.hits(doubt), most=MATCH_RIVALS)
        if is_on_stream(name):
            narrow = frozenset(self._parts.cuts(name, picks.before(name)))
            first = sorted(picks.hits(doubt, narrow), key=lambda hit: hit.candidate.order)
            rivals = distinct([*rivals, *distinct(first)[:MATCH_RIVALS]])
        if scoped is None:
            return rivals
        closer = [hit for hit in rivals if hit.error * MATCH_MARGIN <= scoped.hit.error]
        return [scoped.hit, *(hit for hit in closer if not hit.same_as(scoped.hit))]

    def _ahead(self, doubt: State, taken: Hit) -> list[float]:
        """How well the next states agree if the doubtful one is this tensor."""
        picks = self._picks
        errors: list[float] = []
        passed = False
        chain = is_on_stream(doubt.point.name)
        after = picks.root(taken) if chain else None

        def decide(state: State) -> Array | None:
            nonlocal after, passed
            name = state.point.name
            if name == doubt.point.name:
                passed = True
                return taken.array
            if not passed:
                return picks.array(name)
            output = picks.output(state)
            same = stack_of(name) == stack_of(doubt.point.name)
            hits = [output.hit] if output else picks.hits(state, after=after if same else None)
            best = hits[0] if hits else None
            errors.append(min(best.error, 1.0) if best else 1.0)
            if len(errors) == POINTS_AHEAD:
                raise Enough
            if best is None or best.error > picks.agrees:
                return None
            if chain and same and is_on_stream(name):
                after = picks.root(best)
            return best.array

        steer(self._model, self._probe, decide)
        return errors

    def _proven(self, doubt: State, scores: Sequence[tuple[list[float], Hit]]) -> Hit | None:
        """The tensor from which the model goes on as the graph does, if only one is."""

        def total(errors: Sequence[float]) -> float:
            return sum(math.log(max(e, LEAST_MATCH_ERROR)) for e in errors)

        ranked = sorted(scores, key=lambda score: total(score[0]))
        agrees = self._picks.agrees
        if not ranked or min(ranked[0][0], default=math.inf) > agrees:
            return None
        errors, hit = ranked[0]
        if is_on_stream(doubt.point.name) and errors[0] > agrees:
            return None  # the next state is computed from this one
        if len(ranked) > 1 and total(ranked[1][0]) - total(errors) < math.log(MATCH_MARGIN):
            return None
        return hit

    def _by_repetition(self, doubt: State) -> Pick | None:
        """The end of the layer's own block, where the graph repeats as often as the model."""
        name, picks, parts = doubt.point.name, self._picks, self._parts
        stack, names = stack_of(name), [point.name for point in self._points]
        layers = [n for n in names if layer_of(n) == n and stack_of(n) == stack]
        embed = picks.decided.get(in_stack(stack or "", EMBED))
        if name not in layers or embed is None or not embed.sure:
            return None
        ends = dict(zip(layers, parts.repeated(picks.root(embed.hit), len(layers)), strict=False))
        for other, pick in picks.decided.items():
            if pick is None or other not in ends:
                continue
            if picks.root(pick.hit) != parts.root(ends[other]):
                return None  # values know better: its blocks are not the model's
        hits = picks.hits(doubt, frozenset([ends[name]])) if name in ends else []
        return Pick(hits[0], STRUCTURE, False) if hits else None
