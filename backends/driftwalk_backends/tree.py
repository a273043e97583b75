"""The module tree as a walk: points for models, and parts of models, without a stack of blocks.

A run is a tree of calls. The walk goes over the outermost calls with weights, and opens those that
are no unit of their own: wrappers, sequences, stages made of like blocks, whatever holds half of
the model, and whatever gives the model's output (which is a point already). What runs between two
parts belongs to the second.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import count
from typing import Any

import torch
from torch import nn

from .tensors import is_float, tensors_in

_WRAPPER = 0.9
"""One part with this share of a module's weights: the module only wraps it."""
_STAGE = 2 / 3
"""Like blocks with this share of a module's weights: the module is a stage of them."""
_LARGE = 0.5
"""A part with this share of all weights is no unit."""
_SEQUENCE = 0.05
"""A sequence with less than this share of all weights is left closed."""
_UNIT = 6
"""So many single layers in a sequence are a unit: a convolution and its norm are best seen as one,
since what runs a model may fold them into one."""

_NUMBER = re.compile(r"[._]?\d+\Z")


@dataclass(eq=False)
class Visit:
    """One call of a module, and the calls that it made."""

    path: str
    module: nn.Module
    call: int
    """Which call of this module in the run, counted from 0."""
    calls: list[Visit] = field(default_factory=list)
    gives: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    """The float tensors among its outputs."""
    order: int = 0
    """When it ended, by the clock of the run."""

    @cached_property
    def weights(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def parts(self) -> list[Visit]:
        """The calls inside that have weights."""
        return [visit for visit in self.calls if visit.weights]

    def gives_any(self, tensors: Iterable[torch.Tensor]) -> bool:
        wanted = {id(tensor) for tensor in tensors}
        return any(id(given()) in wanted for given in self.gives if given() is not None)

    def all(self) -> Iterator[Visit]:
        """This call and all inside of it, in order."""
        yield self
        for visit in self.calls:
            yield from visit.all()


class Visits:
    """The calls of all modules in one run, as a tree."""

    def __init__(self) -> None:
        self.clock = count()
        self.forget()

    def forget(self) -> None:
        """Begin anew: a run that failed may be run again."""
        self.root: Visit | None = None
        self.counts: Counter[str] = Counter()
        """How often each module was called."""
        self.outputs: list[torch.Tensor] = []
        """The float tensors that the model gave."""
        self._open: list[Visit] = []

    def hooks(self, module: nn.Module) -> Iterator[tuple[nn.Module, Any, Any]]:
        for path, part in module.named_modules():
            yield part, partial(self._before, path), self._after

    def _before(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        visit = Visit(path, part, self.counts[path])
        self.counts[path] += 1
        if self._open:
            self._open[-1].calls.append(visit)
        elif self.root is None:
            self.root = visit
        self._open.append(visit)

    def _after(self, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        floats = [tensor for _, tensor in tensors_in(output) if is_float(tensor)]
        visit = self._open.pop()
        visit.gives = [weakref.ref(tensor) for tensor in floats]
        visit.order = next(self.clock)
        if not self._open:
            self.outputs = floats

    def computing(self) -> dict[int, int]:
        """The size of each parameter of the modules that were called.

        Not of tables, which only look up, nor of a last layer: the output is a point.
        """
        called = {visit.module for visit in self.all()}
        tables = {module for module in called if isinstance(module, nn.Embedding)}
        last = {v.module for v in self.all() if not v.parts and v.gives_any(self.outputs)}
        looked_up = {id(parameter) for table in tables for parameter in table.parameters()}
        return {
            id(parameter): parameter.numel()
            for module in called - tables - last
            for parameter in module.parameters(recurse=False)
            if id(parameter) not in looked_up
        }

    def all(self) -> Iterator[Visit]:
        """All calls, in order."""
        return iter(()) if self.root is None else self.root.all()

    def outside(self, blocks: set[str]) -> Iterator[Visit]:
        """The outermost calls that are in no block, and have none inside."""
        return iter(()) if self.root is None else _outside(self.root, blocks)


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
    if max(part.weights for part in parts) >= _WRAPPER * visit.weights:
        return True
    if isinstance(visit.module, nn.Sequential):
        unit = len(parts) <= _UNIT and not any(part.parts for part in parts)
        return share >= _SEQUENCE and not unit
    inside = sum({part.path: part.weights for part in parts}.values())
    if share > _LARGE and inside >= _WRAPPER * visit.weights:
        return True
    return _blocks_in(parts) >= _STAGE * visit.weights


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


def _outside(visit: Visit, blocks: set[str]) -> Iterator[Visit]:
    if visit.path in blocks:
        return
    if any(path.startswith(f"{visit.path}." if visit.path else "") for path in blocks):
        for one in visit.calls:
            yield from _outside(one, blocks)
    else:
        yield visit
