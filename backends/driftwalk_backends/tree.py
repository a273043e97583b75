"""The module tree as a walk: points for models, and parts of models, without a stack of blocks.

A run is a tree of calls. The walk goes over the outermost calls with weights, and opens those that
are no unit of their own: wrappers, sequences, stages made of like blocks, whatever holds half of
the model, and whatever gives the model's output (which is a point already). What runs between two
parts belongs to the second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, count
from typing import Any

import torch
from torch import nn

from .constants import (
    CLOSED_SEQUENCE_SHARE,
    LARGE_PART_SHARE,
    STAGE_SHARE,
    UNIT_LAYERS,
    WRAPPED_SHARE,
)
from .glimpses import Glimpse
from .tensors import tensors_in

_NUMBER = re.compile(r"[._]?\d+\Z")


@dataclass(eq=False)
class Visit:
    """One call of a module, and the calls that it made."""

    path: str
    module: nn.Module
    call: int
    """Which call of this module in the run, counted from 0."""
    run: Visits
    calls: list[Visit] = field(default_factory=list)
    gives: list[Glimpse] = field(default_factory=list)
    """The float tensors among its outputs."""
    order: int = 0
    """When it ended, by the clock of the run."""

    @cached_property
    def weights(self) -> int:
        return self.run.weights_of(self.module)

    @cached_property
    def parts(self) -> list[Visit]:
        """The calls inside that have weights."""
        return [visit for visit in self.calls if visit.weights]

    def gives_any(self, tensors: Iterable[torch.Tensor]) -> bool:
        given = [tensor for one in self.gives if (tensor := one.object) is not None]
        return any(one is tensor for one in given for tensor in tensors)

    def all(self) -> Iterator[Visit]:
        """This call and all inside of it, in order."""
        yield self
        for visit in self.calls:
            yield from visit.all()


class Visits:
    """The calls of all modules in one run, as a tree."""

    def __init__(self, module: nn.Module) -> None:
        self.clock = count()
        self._module = module
        self.outputs: list[torch.Tensor] = []
        """The float tensors that the model gave."""
        self.forget()

    def forget(self) -> None:
        """Begin anew: a run that failed may be run again."""
        self.root: Visit | None = None
        self.counts: Counter[str] = Counter()
        """How often each module was called."""
        self._open: list[Visit] = []

    def begin(self, path: str, part: nn.Module) -> None:
        """A call begins."""
        visit = Visit(path, part, self.counts[path], self)
        self.counts[path] += 1
        if self._open:
            self._open[-1].calls.append(visit)
        elif self.root is None:
            self.root = visit
        self._open.append(visit)

    def end(self, output: Any, sample: bool) -> Visit:
        """The innermost call ends; `sample`: what it gave may be a state."""
        visit = self._open.pop()
        for _, tensor in tensors_in(output):
            if tensor.is_floating_point():
                visit.gives.append(Glimpse(tensor, sample=sample))
        visit.order = next(self.clock)
        return visit

    @cached_property
    def parameters(self) -> dict[nn.Module, dict[int, int]]:
        """The sizes of each module's parameters, by their ids; asked for after the run, since some
        modules make theirs in it."""
        return _sizes(self._module)

    def weights_of(self, module: nn.Module) -> int:
        """How many parameters a module has."""
        return sum(self.parameters[module].values())

    def computing(self) -> dict[int, int]:
        """The size of each parameter of the modules that were called.

        Not of tables, which only look up, nor of a last layer: the output is a point.
        """
        called = {visit.module for visit in self.all()}
        tables = {module for module in called if isinstance(module, nn.Embedding)}
        last = {v.module for v in self.all() if not v.parts and v.gives_any(self.outputs)}
        looked_up = {key for table in tables for key in self.parameters[table]}
        return {
            id(parameter): parameter.numel()
            for module in called - tables - last
            for parameter in module._parameters.values()
            if parameter is not None and id(parameter) not in looked_up
        }

    def all(self) -> Iterator[Visit]:
        """All calls, in order."""
        return iter(()) if self.root is None else self.root.all()

    def outside(self, blocks: set[str]) -> Iterator[Visit]:
        """The outermost calls that are in no block, and have none inside."""
        around = {outer for block in blocks for outer in paths_to(block)} | (
            {""} if blocks else set()
        )
        return iter(()) if self.root is None else _outside(self.root, blocks, around)


def parts_of(visits: Sequence[Visit], outputs: Sequence[torch.Tensor], total: int) -> list[Visit]:
    """The walk through some calls of one run, opened as far as is of use; all of `total` weights.

    A part that gives an output of the model is none: the output is the point.
    """
    parts: list[Visit] = []
    for visit in visits:
        if visit.parts and _is_open(visit, outputs, total):
            parts += parts_of(visit.parts, outputs, total)
        elif visit.weights and visit.gives and not visit.gives_any(outputs):
            parts.append(visit)
    return parts


def _is_open(visit: Visit, outputs: Sequence[torch.Tensor], total: int) -> bool:
    parts, share = visit.parts, visit.weights / max(total, 1)
    if visit.gives_any(outputs) or not visit.gives:
        return True
    if max(part.weights for part in parts) >= WRAPPED_SHARE * visit.weights:
        return True
    if isinstance(visit.module, nn.Sequential):
        unit = len(parts) <= UNIT_LAYERS and not any(part.parts for part in parts)
        return share >= CLOSED_SEQUENCE_SHARE and not unit
    inside = sum({part.path: part.weights for part in parts}.values())
    if share > LARGE_PART_SHARE and inside >= WRAPPED_SHARE * visit.weights:
        return True
    return _blocks_in(parts) >= STAGE_SHARE * visit.weights


def _blocks_in(parts: Iterable[Visit]) -> int:
    """The weights of numbered siblings of one class, two or more, that have parts themselves."""
    siblings: dict[tuple[str, type[nn.Module]], dict[str, int]] = {}
    for part in parts:
        if part.parts and list_of(part.path) != part.path:
            kind = list_of(part.path), type(part.module)
            siblings.setdefault(kind, {})[part.path] = part.weights
    return sum(sum(group.values()) for group in siblings.values() if len(group) > 1)


def have_blocks(visits: Sequence[Visit]) -> bool:
    """Whether calls, or those inside one of them, are numbered siblings that have parts."""
    inside = (one.parts for visit in visits for one in visit.all())
    return any(map(_are_numbered, (visits, *inside)))


def _are_numbered(parts: Iterable[Visit]) -> bool:
    """Whether two or more have parts of their own, and a place in one list."""
    places = {part.path for part in parts if part.parts and list_of(part.path) != part.path}
    return len(places) > len({list_of(path) for path in places})


def is_numbered(path: str) -> bool:
    """Whether a module is one of a list, or inside of one."""
    return any(step.isdigit() for step in path.split("."))


def list_of(path: str) -> str:
    """Where numbered siblings stand; the path itself where it has no number."""
    return _NUMBER.sub("", path)


def _sizes(module: nn.Module) -> dict[nn.Module, dict[int, int]]:
    """The sizes of the parameters of each part of a module, those of its own parts with them."""
    sizes: dict[nn.Module, dict[int, int]] = {}

    def sizes_in(part: nn.Module) -> dict[int, int]:
        if part not in sizes:
            sizes[part] = own = {
                id(p): p.numel() for p in part._parameters.values() if p is not None
            }
            for child in part.children():
                own |= sizes_in(child)
        return sizes[part]

    sizes_in(module)
    return sizes


def paths_to(path: str) -> Iterator[str]:
    """`a`, `a.b`, `a.b.c`: a module, and all that it is inside of but the model itself."""
    return accumulate(path.split("."), lambda outer, name: f"{outer}.{name}")


def _outside(visit: Visit, blocks: set[str], around: set[str]) -> Iterator[Visit]:
    """`around` are the modules with blocks inside."""
    if visit.path in blocks:
        return
    if visit.path in around:
        for one in visit.calls:
            yield from _outside(one, blocks, around)
    else:
        yield visit
