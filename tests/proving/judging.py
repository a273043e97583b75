"""Whether an answer is the right one: caught, placed, a false alarm."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from .case import Done, Owed
from .pipelines import Answer, Pair
from .places import run
from .spots import distance, floats, wide

Outcome = Literal[
    "placed",  # a fault that was caught, at the layer that has it
    "misplaced",  # caught, and another layer or side was named
    "missed",  # a fault with an effect that passed
    "right",  # an honest run that passed
    "alarm",  # an honest run that was called drift
    "unverified",  # no verdict: neither right nor wrong, but for what is undecidable
    "refused",  # an error on purpose, with a message
    "broken",  # any other error, or no answer in time
]
HANDED = re.compile(r"(input|argument \S+) of (.+)")
VISIBLE = 1e-6
"""A fault counts from this relative effect on an output on, in float64."""
SAME = 1e-6
"""Honest runs must be nearer than this in float64, or the case is none."""


def outcome(owed: Owed, answer: Answer, placed: bool) -> Outcome:
    """What an answer is worth, by what was owed."""
    if answer.verdict == "unverified":
        return "right" if owed in ("undecidable", "unsteady") else "unverified"
    drifted = answer.verdict == "drift"
    if owed == "unsteady":
        return "right" if drifted else "missed"
    if owed == "fault":
        return ("placed" if placed else "misplaced") if drifted else "missed"
    if owed == "undecidable":
        return "alarm" if drifted else "missed"
    return "alarm" if drifted else "right"


@dataclass(frozen=True)
class Right:
    """The places that may be named for a fault."""

    points: frozenset[str]
    paths: tuple[str, ...]

    def layer(self, answer: Answer, done: Done) -> bool:
        """Whether the layer is right, and the side; a run that names no side is not held to it."""
        side = answer.at_fault in ("", done.at_fault)
        return side and answer.cause in self.points

    def module(self, answer: Answer) -> bool:
        """Whether the part named is the one, lies in it, or holds it without being the block."""
        accused = answer.culprit or answer.module
        if not accused:
            return False
        for path in self.paths:
            if within(accused, path) or (within(path, accused) and accused != answer.module):
                return True
            if path == answer.module or within(answer.module, path):
                return True
        return False


def told_wrongly(answer: Answer, done: Done, pair: Pair) -> list[str]:
    """What a drift report says that is not so, whatever its verdict and place are."""
    told = []
    home = answer.weight.rpartition(".")[0]
    if home and not any(within(home, one) or within(one, home) for one in done.targets):
        told.append("another weight")
    if done.at_fault == "both" and answer.cause:
        told.append("one cause of two")
    if answer.verdict == "drift" and answer.ties:
        told.append("ties in a run that drifts")
    if answer.no_weight and isinstance(pair.candidate, nn.Module):
        held = dict(pair.model.named_parameters())
        inside = (n for n in held if within(n.rpartition(".")[0], answer.module))
        other = dict(pair.candidate.named_parameters())
        if any(n in other and not torch.equal(held[n], other[n]) for n in inside):
            told.append("the cause is no weight")
    return told


def within(path: str, other: str) -> bool:
    """Whether one path is another, or lies inside it."""
    return f"{path}.".startswith(f"{other}.")


def right_places(module: nn.Module, inputs: Mapping[str, Any], done: Done, said: Answer) -> Right:
    """Which points a fault shows at first: the first point that is made after its module ran."""
    events = _events(module, inputs)
    points: list[str] = []
    for target in done.targets:
        path = _called(target, module, events)
        end = next((n for n, e in enumerate(events) if e == ("end", path)), len(events) - 1)
        points += _first(_made(said, events), end, partial(_moved, module, done, inputs))
        inside = (name for name, place in said.points if place and within(place, target))
        points += inside if target else ()
    return Right(frozenset(points), done.targets)


def _first(made: list[tuple[str, int, str]], end: int, moved: Callable[[str], bool]) -> list[str]:
    """The first points made from a moment on; what a block is handed counts only if it moved."""
    later = [one for one in made if one[1] >= end and (not one[2] or moved(one[2]))]
    soonest = min((when for _, when, _ in later), default=-1)
    return [name for name, when, _ in later if when == soonest]


def _moved(module: nn.Module, done: Done, inputs: Mapping[str, Any], path: str) -> bool:
    """Whether what a block is handed differs in float64: a table of angles may not touch it."""
    sides = [wide(side) for side in (module, done.candidate) if isinstance(side, nn.Module)]
    if len(sides) < 2 or path not in dict(sides[1].named_modules()):
        return True
    first, second = (_handed(side, path, inputs) for side in sides)
    return distance(first, second) > 0


def _handed(module: nn.Module, path: str, inputs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The first thing that a module is called with, in its first call."""
    seen: list[list[torch.Tensor]] = []

    def look(_: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(floats(list(args)[:1] or list(kwargs.values())[:1]))

    handle = module.get_submodule(path).register_forward_pre_hook(look, with_kwargs=True)
    try:
        run(module, inputs, torch.float64)
    finally:
        handle.remove()
    return seen[0] if seen else []


def _events(module: nn.Module, inputs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Calls of modules in one run, as they begin and end."""
    events: list[tuple[str, str]] = []
    handles = []
    for path, part in module.named_modules():
        begin = lambda *_, path=path: events.append(("begin", path))  # noqa: E731
        end = lambda *_, path=path: events.append(("end", path))  # noqa: E731
        handles += [part.register_forward_pre_hook(begin), part.register_forward_hook(end)]
    try:
        run(module, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return events


def _called(target: str, module: nn.Module, events: list[tuple[str, str]]) -> str:
    """The module itself, or the one around it that is called."""
    ended = {path for kind, path in events if kind == "end"}
    while target and target not in ended:
        target = target.rpartition(".")[0]
    return target


def _made(said: Answer, events: list[tuple[str, str]]) -> list[tuple[str, int, str]]:
    """When each point of a report is made, in order; a block that runs again has several.

    Of what a block is handed, also the block.
    """
    made, used = [], dict.fromkeys({module for _, module in said.points}, 0)
    for name, module in said.points:
        handed = HANDED.match(module)  # what a block is given, before it begins
        wanted = ("begin", handed[2]) if handed else ("end", module)
        times = [n for n, event in enumerate(events) if event == wanted]
        if times:
            when = times[min(used[module], len(times) - 1)]
            made.append((name, when, handed[2] if handed and handed[1] == "input" else ""))
        elif name == said.points[-1][0] or not module:
            made.append((name, len(events) - 1, ""))
        used[module] += 1
    return made
