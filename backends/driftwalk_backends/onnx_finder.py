"""Finding a model's states among the tensors of a graph, while the model itself runs along.

The torch model is replayed, each block on the state that was just found in the graph. What a block
then makes is what the graph must have next, but for rounding, *however far the two have drifted
apart by then*: only a layer that is itself at fault gives something else. Such a layer's state is
found by looking ahead: the tensor is the right one if the blocks after it, run on it, give what the
graph has after it. Without that proof, a scope that says so, or blocks that repeat as the model's
do, a point stays missing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from driftwalk.dtypes import Array
from driftwalk.states import Point, Probe, State

from .onnx_match import MARGIN, Arrangement, Candidate, Hit, Pool, clear, distinct
from .onnx_parts import Parts
from .torch_eager import TorchEager

VALUE, PLACE = "value", "repeated structure"
OUTPUT_NAME, OUTPUT_SHAPE = "output name", "output shape"

_LIMITS = {"fp64": 1e-3, "fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2}
"""How far a block's result may honestly be off, relative to the state, by the graph's format."""
_QUANTISED = 0.1
"""The same for a graph whose matrix products are of whole numbers."""
_AHEAD = 3
"""How many points ahead a doubtful match is followed."""
_RIVALS = 8
"""How many tensors are tried in the place of a doubtful state: of the closest, and again of those
that the graph narrows down to, which a state far off is still one of."""

_CHAIN = re.compile(r"(?:(?P<stack>.+?)\.)?(?:embed|layer\.\d+|norm)\Z")
_INSIDE = re.compile(r"(?:(?P<stack>.+?)\.)?layer\.\d+\.")


@dataclass(frozen=True, eq=False)
class Pick:
    """What was taken for a point: which tensor, how it was found, and whether its values agree."""

    hit: Hit
    way: str
    sure: bool


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


class _Enough(Exception):  # noqa: N818 - the way out of a forward pass whose end is not needed
    pass


class _Steered(Mapping[str, Array]):
    """States for a replay that are chosen while it runs."""

    def __init__(self, decide: Callable[[State], Array | None]) -> None:
        self._decide = decide
        self._latest: State | None = None

    def meet(self, state: State) -> None:
        self._latest = state

    def get(self, name: str, default: object = None) -> Array | None:  # type: ignore[override]
        return None if self._latest is None else self._decide(self._latest)

    def __getitem__(self, name: str) -> Array:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Finder:
    """One search: a model, a probe, and the graphs' tensors on that probe."""

    def __init__(
        self,
        model: TorchEager,
        probe: Probe,
        parts: Parts,
        fetch: Callable[[Sequence[str], frozenset[int]], list[Candidate]],
        dtype: str,
        quantised: bool = False,
    ) -> None:
        self._model = model
        self._probe = probe
        self._parts = parts
        self._fetch = fetch
        self._limit = _LIMITS[dtype]
        self._agrees = _QUANTISED if quantised else self._limit
        self._points: list[Point] = []
        self._scoped: dict[str, tuple[tuple[str, ...], str]] = {}
        self._pool = Pool(())
        self._decided: dict[str, Pick | None] = {}
        self._lacking: dict[str, str] = {}
        self._distrusted = False

    def search(self) -> Search:
        """Find every point that can be found; by scopes alone where they hold."""
        shapes: list[tuple[int, ...]] = []

        def note(state: State) -> None:
            self._points.append(state.point)
            shapes.append(state.array.shape)

        self._model.stream(self._probe, note)
        sizes = frozenset(math.prod(shape) for shape in shapes)
        shared = Counter(point.module for point in self._points)
        for point in self._points:
            # One block applied many times has one scope for all of its states.
            keys, way = self._parts.scoped(point) if shared[point.module] == 1 else ((), "")
            self._scoped[point.name] = keys, way
        if any(keys for keys, _ in self._scoped.values()):
            wanted = dict.fromkeys(key for keys, _ in self._scoped.values() for key in keys)
            self._pool = Pool(self._fetch([*wanted, *self._parts.outputs], sizes))
            self._replay(self._by_scope)
            if self._settled():
                return self._result()
        self._decided.clear()
        self._pool = Pool(self._fetch([*self._parts.floats, *self._parts.outputs], sizes))
        while (doubt := self._walk()) is not None:
            self._resolve(doubt)
        return self._result()

    def _result(self) -> Search:
        found = []
        for point in self._points:
            pick = self._decided.get(point.name)
            if pick is not None:
                key = pick.hit.candidate.name
                named = replace(point, found=pick.way)
                found.append(Found(named, key, pick.hit.arrangement))
        lacking = {
            point.name: self._lacking.get(point.name, "no tensor of the graph agrees with it")
            for point in self._points
            if self._decided.get(point.name) is None
        }
        return Search(tuple(found), lacking)

    def _replay(self, decide: Callable[[State], Array | None]) -> bool:
        """One forward pass of the model on states of our choice; False where it was cut short."""
        steered = _Steered(decide)
        try:
            self._model.replay(self._probe, steered, steered.meet)
        except _Enough:
            return False
        return True

    def _by_scope(self, state: State) -> Array | None:
        """Scopes alone: take what they name, and see how well it agrees."""
        pick = self._output(state) or self._scope_pick(state)
        self._decided[state.point.name] = pick
        return None if pick is None else pick.hit.array

    def _settled(self) -> bool:
        """Every point is there, and each state that does not agree explains the one after it."""
        picks = [self._decided.get(point.name) for point in self._points]
        if any(pick is None for pick in picks):
            return False
        known = [pick for pick in picks if pick is not None]
        following = [*known[1:], None]
        return all(
            pick.sure or (after is not None and after.sure) or pick.way == OUTPUT_NAME
            for pick, after in zip(known, following, strict=True)
        )

    def _walk(self) -> State | None:
        """Decide point after point as far as values are clear; the first that is not comes back."""
        doubt: list[State] = []

        def decide(state: State) -> Array | None:
            name = state.point.name
            if name not in self._decided:
                pick = self._output(state) or self._clear_pick(state)
                if pick is None:
                    doubt.append(state)
                    raise _Enough
                self._decided[name] = pick
            known = self._decided[name]
            return None if known is None else known.hit.array

        self._replay(decide)
        return doubt[0] if doubt else None

    def _clear_pick(self, state: State) -> Pick | None:
        """A tensor that agrees as honest arithmetic does, and no other near it."""
        scoped = self._scope_pick(state)
        if scoped is not None and scoped.sure:
            return scoped
        best = clear(self._hits(state), self._limit)
        if best is None:
            return None
        if scoped is not None and not best.same_as(scoped.hit):
            self._distrusted = True  # its scopes say otherwise: an optimiser moved its nodes
        return Pick(best, VALUE, True)

    def _scope_pick(self, state: State) -> Pick | None:
        """The one tensor that leaves the scope in the state's shape; of several the best."""
        keys, way = self._scoped[state.point.name]
        hits = self._hits(state, frozenset(keys)) if keys else []
        plainest = min((hit.arrangement.rank for hit in hits), default=0)
        apart = distinct([hit for hit in hits if hit.arrangement.rank == plainest])
        if not apart or (len(apart) > 1 and apart[1].error < MARGIN * apart[0].error):
            return None
        return Pick(apart[0], way, apart[0].error <= self._agrees)

    def _output(self, state: State) -> Pick | None:
        """The model's own output: by its name, else the only output that has its shape."""
        if state.point.name != "logits":
            return None
        layout = self._model.layout
        part = self._parts.of("logits")
        named = self._parts.key(part, (layout.output if layout else None) or "logits")
        keep = self._probe.keep(state.point.name, state.array.shape)
        outputs = self._pool.hits(
            state.array, keep, lambda one: one.name in self._parts.outputs, closest=1 << 10
        )
        fitting = [hit for hit in outputs if hit.arrangement.rank <= 1]
        for hit in fitting:
            if hit.candidate.name == named:
                return Pick(hit, OUTPUT_NAME, hit.error <= self._agrees)
        if len(fitting) == 1:
            return Pick(fitting[0], OUTPUT_SHAPE, fitting[0].error <= self._agrees)
        return None

    def _hits(
        self, state: State, among: frozenset[str] | None = None, after: str | None = None
    ) -> list[Hit]:
        """What fits a state and is computed from the state before it."""
        name = state.point.name
        before = after or self._before(name)
        part = self._parts.of(name)

        def allowed(one: Candidate) -> bool:
            return (
                (among is None or one.name in among)
                and self._parts.split(one.name)[0] is part
                and (before is None or self._parts.depends(one.name, before))
            )

        keep = self._probe.keep(name, state.array.shape)
        return self._pool.hits(state.array, keep, allowed)

    def _before(self, name: str) -> str | None:
        """The latest state found in the same stack: what comes next is computed from it."""
        stack = _stack(name)
        chain = [
            self._parts.root(pick.hit.candidate.name)
            for other, pick in self._decided.items()
            if pick is not None and _in_chain(other) and _stack(other) == stack
        ]
        return chain[-1] if chain and stack is not None else None

    def _resolve(self, doubt: State) -> None:
        """Look ahead from every tensor that may be the doubtful state, and take the one proven."""
        name = doubt.point.name
        scoped = self._scope_pick(doubt)
        rivals = distinct(self._hits(doubt), most=_RIVALS)
        if _in_chain(name):
            narrow = frozenset(self._parts.cuts(name, self._before(name)))
            first = sorted(self._hits(doubt, narrow), key=lambda hit: hit.candidate.order)
            rivals = distinct([*rivals, *distinct(first)[:_RIVALS]])
        if scoped is not None:
            closer = [hit for hit in rivals if hit.error * MARGIN <= scoped.hit.error]
            rivals = [scoped.hit, *(hit for hit in closer if not hit.same_as(scoped.hit))]
        if scoped is not None and len(rivals) == 1 and not self._distrusted:
            self._decided[name] = scoped
            return
        scores = [(self._ahead(doubt, hit), hit) for hit in rivals]
        scores.sort(key=lambda item: sum(math.log(max(e, 1e-9)) for e in item[0]))
        winner = self._proven(scores, _in_chain(name))
        if winner is not None:
            own = scoped is not None and winner.same_as(scoped.hit)
            way = scoped.way if own and scoped is not None else VALUE
            self._decided[name] = Pick(winner, way, False)
        elif scoped is not None and not self._distrusted:
            self._decided[name] = scoped
        elif (placed := self._placed(doubt)) is not None:
            self._decided[name] = placed
        else:
            self._decided[name] = None
            self._lacking[name] = (
                f"{len(rivals)} tensors of the graph may be this state, and none is clearly it"
                if rivals
                else "no tensor of the graph has its shape"
            )

    def _placed(self, doubt: State) -> Pick | None:
        """The end of the layer's own block, where the graph repeats as often as the model."""
        stack = _stack(doubt.point.name)
        layers = [p.name for p in self._points if _is_layer(p.name) and _stack(p.name) == stack]
        embed = self._decided.get(f"{stack}.embed" if stack else "embed")
        if doubt.point.name not in layers or embed is None or not embed.sure:
            return None
        ends = self._parts.repeated(self._parts.root(embed.hit.candidate.name), len(layers))
        places = dict(zip(layers, ends, strict=False))
        for name, pick in self._decided.items():
            if pick is None or name not in places:
                continue
            if self._parts.root(pick.hit.candidate.name) != self._parts.root(places[name]):
                return None  # values know better: its blocks are not the model's
        own = frozenset(ends[layers.index(doubt.point.name) :][:1])
        hits = self._hits(doubt, own) if own else []
        return Pick(hits[0], PLACE, False) if hits else None

    def _proven(self, scores: Sequence[tuple[list[float], Hit]], chain: bool) -> Hit | None:
        """The tensor from which the model goes on as the graph does, if only one is."""
        if not scores or not scores[0][0] or min(scores[0][0]) > self._agrees:
            return None
        if chain and scores[0][0][0] > self._agrees:  # the next state is computed from this one
            return None
        sums = [sum(math.log(max(e, 1e-9)) for e in errors) for errors, _ in scores]
        if len(sums) > 1 and sums[1] - sums[0] < math.log(MARGIN):
            return None
        return scores[0][1]

    def _ahead(self, doubt: State, taken: Hit) -> list[float]:
        """How well the next states agree if the doubtful one is this tensor."""
        errors: list[float] = []
        passed: list[bool] = []
        chain = _in_chain(doubt.point.name)
        after = self._parts.root(taken.candidate.name) if chain else None

        def decide(state: State) -> Array | None:
            nonlocal after
            name = state.point.name
            if name == doubt.point.name:
                passed.append(True)
                return taken.array
            if not passed:
                known = self._decided.get(name)
                return None if known is None else known.hit.array
            output = self._output(state)
            same = _stack(name) == _stack(doubt.point.name)
            hits = [output.hit] if output else self._hits(state, after=after if same else None)
            best = hits[0] if hits else None
            errors.append(min(best.error, 1.0) if best else 1.0)
            if len(errors) == _AHEAD:
                raise _Enough
            if best is None or best.error > self._agrees:
                return None
            if chain and same and _in_chain(name):
                after = self._parts.root(best.candidate.name)
            return best.array

        self._replay(decide)
        return errors


def _is_layer(name: str) -> bool:
    return _in_chain(name) and name.rpartition(".")[2].isdecimal()


def _in_chain(name: str) -> bool:
    """Whether a point lies on the residual stream: each such state is computed from the last."""
    return bool(_CHAIN.match(name)) and not _INSIDE.match(name)


def _stack(name: str) -> str | None:
    """The stack a point belongs to: empty for the only one; None for the model's output."""
    match = _INSIDE.match(name) or _CHAIN.match(name)
    return None if match is None else match["stack"] or ""
