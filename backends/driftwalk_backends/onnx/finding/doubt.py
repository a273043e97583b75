"""A state that no tensor clearly is: look ahead from every tensor that it may be.

The right one is that from which the model goes on as the graph does. Without such a proof, a scope
that was never wrong decides, then blocks that repeat as often as the model's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from driftwalk.dtypes import Array
from driftwalk.names import EMBED, in_stack, is_on_stream, layer_of, stack_of
from driftwalk.states import Point, State

from ...matching import MARGIN, Hit, distinct
from .picks import VALUE, Pick, Picks
from .steering import Decide, Enough

PLACE = "repeated structure"

_AHEAD = 3
"""How many points ahead a doubtful match is followed."""
_RIVALS = 8
"""How many tensors are tried in the place of a doubtful state: of the closest, and again of those
that the graph narrows down to, which a state far off is still one of."""

Replay = Callable[[Decide], None]
"""One forward pass of the model on states that are decided while it runs."""


def resolve(picks: Picks, points: Sequence[Point], replay: Replay, doubt: State) -> Pick | str:
    """What the doubtful state is; or a sentence on why nobody can say."""
    scoped = picks.scoped(doubt)
    rivals = _rivals(picks, doubt, scoped)
    if scoped is not None and len(rivals) == 1 and not picks.distrusted:
        return scoped
    scores = [(_ahead(picks, replay, doubt, hit), hit) for hit in rivals]
    winner = _proven(scores, picks.limits.agrees, is_on_stream(doubt.point.name))
    if winner is not None:
        own = scoped is not None and winner.same_as(scoped.hit)
        return Pick(winner, scoped.way if own and scoped is not None else VALUE, False)
    if scoped is not None and not picks.distrusted:
        return scoped
    if (placed := _placed(picks, points, doubt)) is not None:
        return placed
    if not rivals:
        return "no tensor of the graph has its shape"
    return f"{len(rivals)} tensors of the graph may be this state, and none is clearly it"


def _rivals(picks: Picks, doubt: State, scoped: Pick | None) -> list[Hit]:
    """The closest tensors and the narrow places; beside a scope's only what is clearly closer."""
    name = doubt.point.name
    rivals = distinct(picks.hits(doubt), most=_RIVALS)
    if is_on_stream(name):
        narrow = frozenset(picks.parts.cuts(name, picks.before(name)))
        first = sorted(picks.hits(doubt, narrow), key=lambda hit: hit.candidate.order)
        rivals = distinct([*rivals, *distinct(first)[:_RIVALS]])
    if scoped is None:
        return rivals
    closer = [hit for hit in rivals if hit.error * MARGIN <= scoped.hit.error]
    return [scoped.hit, *(hit for hit in closer if not hit.same_as(scoped.hit))]


def _ahead(picks: Picks, replay: Replay, doubt: State, taken: Hit) -> list[float]:
    """How well the next states agree if the doubtful one is this tensor."""
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
            known = picks.decided.get(name)
            return None if known is None else known.hit.array
        output = picks.output(state)
        same = stack_of(name) == stack_of(doubt.point.name)
        hits = [output.hit] if output else picks.hits(state, after=after if same else None)
        best = hits[0] if hits else None
        errors.append(min(best.error, 1.0) if best else 1.0)
        if len(errors) == _AHEAD:
            raise Enough
        if best is None or best.error > picks.limits.agrees:
            return None
        if chain and same and is_on_stream(name):
            after = picks.root(best)
        return best.array

    replay(decide)
    return errors


def _proven(scores: Sequence[tuple[list[float], Hit]], agrees: float, chain: bool) -> Hit | None:
    """The tensor from which the model goes on as the graph does, if only one is."""
    ranked = sorted(((_total(errors), errors, hit) for errors, hit in scores), key=lambda s: s[0])
    if not ranked:
        return None
    total, errors, hit = ranked[0]
    if not errors or min(errors) > agrees:
        return None
    if chain and errors[0] > agrees:  # the next state is computed from this one
        return None
    if len(ranked) > 1 and ranked[1][0] - total < math.log(MARGIN):
        return None
    return hit


def _total(errors: Sequence[float]) -> float:
    return sum(math.log(max(e, 1e-9)) for e in errors)


def _placed(picks: Picks, points: Sequence[Point], doubt: State) -> Pick | None:
    """The end of the layer's own block, where the graph repeats as often as the model."""
    name, parts = doubt.point.name, picks.parts
    stack = stack_of(name)
    layers = [p.name for p in points if layer_of(p.name) == p.name and stack_of(p.name) == stack]
    embed = picks.decided.get(in_stack(stack or "", EMBED))
    if name not in layers or embed is None or not embed.sure:
        return None
    ends = parts.repeated(picks.root(embed.hit), len(layers))
    places = dict(zip(layers, ends, strict=False))
    for other, pick in picks.decided.items():
        if pick is None or other not in places:
            continue
        if picks.root(pick.hit) != parts.root(places[other]):
            return None  # values know better: its blocks are not the model's
    hits = picks.hits(doubt, frozenset([places[name]])) if name in places else []
    return Pick(hits[0], PLACE, False) if hits else None
