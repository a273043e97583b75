"""Which tensor a state may be, by what is known so far: an output, a scope, or its numbers.

And one forward pass of the model, its states chosen while it runs (`steer`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from driftwalk.dtypes import Array
from driftwalk.names import LOGITS, is_on_stream, is_output, stack_of
from driftwalk.states import Point, Probe, State

from ..constants import BLOCK_ROUNDING, BLOCK_ROUNDING_QUANTISED, CLOSEST_OUTPUTS, MATCH_MARGIN
from ..layout import Layout
from ..matching import Candidate, Hit, Pool, clear, distinct
from ..torch_eager import TorchEager
from .backend import common_dtype
from .feeds import is_float
from .parts import Parts

VALUE, OUTPUT_NAME, OUTPUT_SHAPE = "value", "output name", "output shape"

Decide = Callable[[State], Array | None]
"""What the model goes on with instead of the state it just made; None: with its own."""


@dataclass(frozen=True, eq=False)
class Pick:
    """What was taken for a point: which tensor, how it was found, and whether its values agree."""

    hit: Hit
    way: str
    sure: bool


class Picks:
    """The tensors of the graphs on a probe, and what each point was decided to be so far."""

    def __init__(self, probe: Probe, parts: Parts) -> None:
        self.parts = parts
        self._honest = BLOCK_ROUNDING[common_dtype(parts.graphs)]
        quantised = any(graph.quantised for graph in parts.graphs)
        self.agrees = BLOCK_ROUNDING_QUANTISED if quantised else self._honest
        self.decided: dict[str, Pick | None] = {}
        self.distrusted = False
        """Whether values showed scopes to be wrong: an optimiser moved nodes."""
        self._probe = probe
        self._pool = Pool(())
        self._scoped: dict[str, tuple[tuple[str, ...], str]] = {}
        self._output_keys: dict[str, str] = {}

    def expect(self, points: Sequence[Point], layout: Layout | None) -> tuple[str, ...]:
        """Note the model's points; the tensors that scopes name for them come back."""
        shared = Counter(point.module for point in points)
        for point in points:
            # One block applied many times has one scope for all of its states.
            found = self.parts.scoped(point) if shared[point.module] == 1 else ((), "")
            self._scoped[point.name] = found
        names = layout.outputs.names if layout else {"logits": "logits"}
        self._output_keys = {
            point: self.parts.keys(self.parts.of(point), [name])[0] for point, name in names.items()
        }
        return tuple(dict.fromkeys(key for keys, _ in self._scoped.values() for key in keys))

    def start(self, candidates: Iterable[Candidate]) -> None:
        """Decide anew, among these tensors."""
        self._pool = Pool(candidates)
        self.decided.clear()

    def array(self, name: str) -> Array | None:
        """The state that a point was decided to have; None where it has none."""
        pick = self.decided.get(name)
        return None if pick is None else pick.hit.array

    def output(self, state: State) -> Pick | None:
        """The model's own output: by its name, else the only output that has its shape."""
        if not is_output(state.point.name):
            return None
        keep = self._probe.keep(state.point.name, state.array.shape)
        floats = is_float(state.array)
        outputs = self._pool.hits(
            state.array,
            keep,
            lambda one: one.name in self.parts.outputs and is_float(one.array) == floats,
            closest=CLOSEST_OUTPUTS,
        )
        fitting = [hit for hit in outputs if hit.arrangement.rank <= 1]
        own = self._output_keys.get(state.point.name)
        for hit in fitting:
            if hit.candidate.name == own:
                return Pick(hit, OUTPUT_NAME, hit.error <= self.agrees)
        # One that bears the name of another output is that one.
        others = [key for key in self._output_keys.values() if key != own]
        fitting = [hit for hit in fitting if hit.candidate.name not in others]
        if len(fitting) == 1:
            sure = fitting[0].error <= self.agrees
            # A graph may have left out any output but the main one.
            if sure or state.point.name == LOGITS:
                return Pick(fitting[0], OUTPUT_SHAPE, sure)
        return None

    def scoped(self, state: State) -> Pick | None:
        """The one tensor that leaves the scope in the state's shape; of several the best."""
        keys, way = self._scoped[state.point.name]
        hits = self.hits(state, frozenset(keys)) if keys else []
        plainest = min((hit.arrangement.rank for hit in hits), default=0)
        apart = distinct([hit for hit in hits if hit.arrangement.rank == plainest])
        if not apart or (len(apart) > 1 and apart[1].error < MATCH_MARGIN * apart[0].error):
            return None
        return Pick(apart[0], way, apart[0].error <= self.agrees)

    def clear(self, state: State) -> Pick | None:
        """A tensor that agrees as honest arithmetic does, and no other near it."""
        scoped = self.scoped(state)
        if scoped is not None and scoped.sure:
            return scoped
        best = clear(self.hits(state), self._honest)
        if best is None:
            return None
        if scoped is not None and not best.same_as(scoped.hit):
            self.distrusted = True
        return Pick(best, VALUE, True)

    def hits(
        self, state: State, among: frozenset[str] | None = None, after: str | None = None
    ) -> list[Hit]:
        """What fits a state and is computed from the state before it."""
        name = state.point.name
        before = after or self.before(name)
        part = self.parts.of(name)

        def allowed(one: Candidate) -> bool:
            return (
                (among is None or one.name in among)
                and self.parts.split(one.name)[0] is part
                and is_float(one.array) == is_float(state.array)
                and (before is None or self.parts.depends(one.name, before))
            )

        keep = self._probe.keep(name, state.array.shape)
        return self._pool.hits(state.array, keep, allowed)

    def before(self, name: str) -> str | None:
        """The latest state found in the same stack: what comes next is computed from it."""
        stack = stack_of(name)
        chain = [
            self.root(pick.hit)
            for other, pick in self.decided.items()
            if pick is not None and is_on_stream(other) and stack_of(other) == stack
        ]
        return chain[-1] if chain and stack is not None else None

    def root(self, hit: Hit) -> str:
        """The tensor that a hit is only a copy, a cast or a reshape of."""
        return self.parts.root(hit.candidate.name)


class Enough(Exception):  # noqa: N818 - the way out of a forward pass whose end is not needed
    """Raised by whoever decides, to end the pass."""


def steer(model: TorchEager, probe: Probe, decide: Decide) -> None:
    """Replay the model on states of our choice, to its end or until that is `Enough`."""
    steered = _Steered(decide)
    with suppress(Enough):
        model.replay(probe, steered, steered.meet)


class _Steered(dict[str, Array]):
    """States for a replay, each asked for right after the model's own was met."""

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self._decide = decide
        self._latest: State | None = None

    def meet(self, state: State) -> None:
        self._latest = state

    def get(self, name: str, default: object = None) -> Array | None:  # type: ignore[override]
        return None if self._latest is None else self._decide(self._latest)
