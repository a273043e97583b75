"""The states of a model in the very run in which its points were found.

Blocks kept what they took and gave in memory; of other modules there are glimpses alone. Where
these leave open whether two tensors are the same, `Unsettled` asks for a run that copies states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from .glimpses import Glimpse
from .layout import Stack
from .shared import Arguments, Given
from .tensors import Slot
from .watching import Call, Watched

States = dict[str, torch.Tensor]


class Unsettled(Exception):  # noqa: N818 - nothing went wrong
    """What one run showed does not tell."""


class _Seen(NamedTuple):
    order: float
    """When, by the clock of the run."""
    name: str
    state: Glimpse
    unhooked: Glimpse | None = None
    """What the module gave before hooks of others changed it."""


class FirstRun:
    """The states of stacks, as far as they are still there."""

    def __init__(self, stacks: Sequence[Stack], watched: Watched) -> None:
        groups = watched.groups.values()
        self._watched = watched
        self._calls = {(call.path, call.number): call for g in groups for call in g.calls}
        self._visits = {(visit.path, visit.call): visit for visit in watched.visits.all()}
        self.states: States = {}
        self.unhooked: States = {}
        self._lost: list[Glimpse] = []
        """States that are gone, or were written to later."""
        seen = [one for stack in stacks for one in self._seen(stack)]
        for one in sorted(seen, key=lambda one: one.order):
            self._keep(self.states, one.name, one.state)
            if one.unhooked is not None and one.unhooked.object is not one.state.object:
                self._keep(self.unhooked, one.name, one.unhooked)

    def _keep(self, states: States, name: str, seen: Glimpse) -> None:
        if (tensor := seen.tensor) is not None:
            states[name] = tensor
        else:
            self._lost.append(seen)

    def _seen(self, stack: Stack) -> Iterator[_Seen]:
        places = zip(stack.layers, zip(stack.blocks, stack.calls, strict=True), strict=True)
        if stack.walked:
            for point, place in places:
                visit = self._visits[place]
                yield from self._given(point.name, place, visit.order, visit.gives)
            return
        calls = self._blocks(stack)
        slot = stack.takes if stack.takes in calls[0].takes else calls[0].stream
        embed = dict(calls[0].arguments)[slot]
        assert embed is not None
        yield _Seen(calls[0].order - 0.5, stack.points[0].name, embed)
        for (point, place), call in zip(places, calls, strict=True):
            first, *others = sorted(call.given, key=lambda slot: slot != stack.gives)
            main = call.gives[first][0]
            streams = [s for s in (first, *others) if stack.hands_on(s, call.gives[s][0], main)]
            given = [call.given[slot] for slot in streams]
            yield from self._given(point.name, place, call.order, given, streams)
        after = [v for v in self._visits.values() if v.path == stack.norm]
        after = [v for v in after if v.order > calls[-1].order and v.gives]
        if after:
            norm, name = min(after, key=lambda visit: visit.order), stack.points[-1].name
            yield from self._given(name, (norm.path, norm.call), norm.order, norm.gives[:1])

    def _given(
        self,
        name: str,
        place: tuple[str, int],
        order: int,
        given: Sequence[Glimpse],
        slots: Sequence[Slot] = (),
    ) -> Iterator[_Seen]:
        """What one call gave, and what it gave before hooks of others."""
        before = self._watched.unhooked.get(place, {})
        unhooked = [before.get(slot) for slot in slots] if slots else list(before.values())
        for number, state in enumerate(given):
            own = f"{name}.out{number}" if number else name
            yield _Seen(order, own, state, unhooked[number] if number < len(unhooked) else None)

    def _blocks(self, stack: Stack) -> list[Call]:
        calls = [self._calls[place] for place in zip(stack.blocks, stack.calls, strict=True)]
        if not all(call.given for call in calls):
            raise Unsettled
        return calls

    def with_shared(self, stack: Stack) -> Stack:
        """The stack, with what several of its blocks are handed beside the stream."""
        if stack.walked:
            return stack
        arguments = Arguments(stack.takes)
        for number, call in enumerate(self._blocks(stack)):
            arguments.add(number, call.module, map(_as_given, call.arguments))
        self.must_not_be_lost(arguments.of_several())
        return replace(stack, shared=arguments.shared(self.states.values()))

    def must_not_be_lost(self, tensors: Iterable[torch.Tensor], any_order: bool = False) -> None:
        """Whether a tensor is a state must be told by the states that are there.

        `any_order`: a state counts whatever the order of its axes.
        """
        for tensor in tensors:
            for lost in self._lost:
                if lost.shape.numel() == tensor.numel() and (any_order or lost.may_be(tensor)):
                    raise Unsettled


def _as_given(argument: tuple[Slot, Glimpse | None]) -> Given:
    slot, seen = argument
    if seen is None:
        return slot, None
    if seen.tensor is None:
        raise Unsettled
    return slot, seen.tensor
