"""Finding the points of a model: its stacks of repeated blocks, the final norm, the output.

Nothing here knows a model by name. One run is watched: a *stack* is a numbered group of sibling
modules (a ModuleList, a Sequential, `block1`, `block2` ...) whose calls hand a float tensor on from
one to the next without changing its shape. The outermost such groups are the stacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError
from driftwalk.states import Point

from .looks import BLOCKS, Look
from .model_outputs import NO_OUTPUTS, OutputPoints
from .tensors import output_tensors, stream_input

_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")
_SMALL_STACK = 0.1
"""A stack with less than this share of the largest one's parameters is part of a head."""


@dataclass(frozen=True)
class Stack:
    """A run of blocks in order of execution; a block applied L times stands here L times."""

    prefix: str
    path: str
    blocks: tuple[str, ...]
    norm: str | None = None

    def name(self, rest: str) -> str:
        return f"{self.prefix}.{rest}" if self.prefix else rest

    @property
    def points(self) -> tuple[Point, ...]:
        layers = [Point(self.name(f"layer.{i}"), path) for i, path in enumerate(self.blocks)]
        norm = [Point(self.name("norm"), self.norm)] if self.norm else []
        return (Point(self.name("embed"), f"input of {self.blocks[0]}"), *layers, *norm)


@dataclass(frozen=True)
class Layout:
    """All points of a model, in order of execution, and how they were confirmed."""

    stacks: tuple[Stack, ...]
    outputs: OutputPoints = NO_OUTPUTS
    """Which of the model's outputs are points."""
    confirmed: str = "unchecked"
    """What the model's own hidden_states said: see crosscheck.py."""
    look: Look = BLOCKS
    """How far inside the blocks; `points` are those of block depth at any look."""

    @property
    def points(self) -> tuple[Point, ...]:
        found = [point for stack in self.stacks for point in stack.points]
        return (*found, *self.outputs.points)


@dataclass
class _Call:
    """One call of a numbered module, as seen from outside."""

    path: str
    kind: type
    keeps_shape: bool
    chained: bool
    order: int


@dataclass
class _Group:
    """Numbered siblings and their calls; `last` is kept alive so that its identity is certain."""

    path: str
    calls: list[_Call] = field(default_factory=list)
    last: torch.Tensor | None = None
    norms: dict[int, str] = field(default_factory=dict)
    """Call count at which a norm took the group's latest output -> the norm's path."""


def find_stacks(module: nn.Module, run: Callable[[], Any]) -> tuple[Stack, ...]:
    """Watch one run and name the stacks; no stack at all is an error that says what to do."""
    groups = _watch(module, run)
    runs = [(group, calls) for group in groups.values() for calls in _runs(module, group)]
    repeated = [item for item in runs if len(item[1]) > 1]
    found = _outermost(repeated or [item for item in runs if _is_list(module, item[0])])
    weights = {id(calls): _parameters(module, calls) for _, calls in found}
    most = max(weights.values(), default=0)
    found = [item for item in found if weights[id(item[1])] >= _SMALL_STACK * most]
    if not found:
        raise ModelError(
            f"No stack of repeated blocks was found in {type(module).__name__}. Looked for "
            "numbered sibling modules (nn.ModuleList, nn.Sequential, block1, block2, ...) that "
            "hand a float tensor on from one to the next without changing its shape. Name the "
            f"stack by hand: blocks='path.to.stack' (--blocks). {_lists(module)}"
        )
    return _prefixed([_stack(module, group, calls) for group, calls in found])


def stacks_by_hand(
    module: nn.Module, paths: Iterable[str], run: Callable[[], Any]
) -> tuple[Stack, ...]:
    """The stacks a user named: containers of blocks, in the order their blocks are called."""
    groups = _watch(module, run)
    found = []
    for path in paths:
        try:
            container = module.get_submodule(path)
        except AttributeError:
            raise ModelError(f"blocks={path!r}: no such module. {_lists(module)}") from None
        children = {f"{path}.{name}" for name, _ in container.named_children()}
        watched = [g for g in groups.values() if any(c.path in children for c in g.calls)]
        calls = sorted((c for g in watched for c in g.calls), key=lambda call: call.order)
        if not calls:
            raise ModelError(
                f"blocks={path!r}: none of its {len(children)} children was called with a float "
                f"tensor in a run of the model. {_lists(module)}"
            )
        found.append(_stack(module, watched[0], calls))
    return _prefixed(found)


def _watch(module: nn.Module, run: Callable[[], Any]) -> dict[str, _Group]:
    """Run once with hooks on all numbered modules and all norms."""
    groups: dict[str, _Group] = {}
    handles = []
    clock = iter(range(1 << 62))

    def on_block(path: str, group: _Group) -> Callable[..., None]:
        def hook(block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            taken, given = stream_input(args, kwargs), output_tensors(output)
            if taken is None or not given:
                return
            chained = group.last is not None and _same(group.last, taken)
            keeps = taken.shape == given[0].shape and taken.ndim >= 2
            group.calls.append(_Call(path, type(block), keeps, chained, next(clock)))
            group.last = given[0]

        return hook

    def on_norm(path: str) -> Callable[..., None]:
        def hook(norm: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            taken = stream_input(args, kwargs)
            if taken is None:
                return
            for group in groups.values():
                if group.last is not None and _same(group.last, taken):
                    group.norms.setdefault(len(group.calls), path)

        return hook

    for path, part in module.named_modules():
        parent, _, name = path.rpartition(".")
        match = _NUMBERED.match(name)
        if match:
            key = f"{parent}.{match['group']}".strip(".")
            group = groups.setdefault(key, _Group(key))
            hook = on_block(path, group)
        elif _is_norm(part):
            hook = on_norm(path)
        else:
            continue
        handles.append(part.register_forward_hook(hook, with_kwargs=True))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
        for group in groups.values():
            group.last = None
    return groups


def _runs(module: nn.Module, group: _Group) -> list[list[_Call]]:
    """Maximal runs of chained, shape-keeping calls."""
    runs: list[list[_Call]] = []
    for call in group.calls:
        if not call.keeps_shape:
            runs.append([])
        elif call.chained and runs and runs[-1]:
            runs[-1].append(call)
        else:
            runs.append([call])
    runs = [run for run in runs if run]
    container = _container(module, group.path)
    if isinstance(container, nn.Sequential):
        runs = [part for run in runs for part in _same_class_parts(run)]
    return runs[:1] if not runs else [max(runs, key=len)]


def _same_class_parts(run: list[_Call]) -> list[list[_Call]]:
    """In a Sequential, the longest run of one class is the stack, if there is one at all."""
    parts = [list(calls) for _, calls in groupby(run, key=lambda call: call.kind)]
    return parts if max(map(len, parts)) > 1 else [run]


def _outermost(found: list[tuple[_Group, list[_Call]]]) -> list[tuple[_Group, list[_Call]]]:
    """Drop what runs inside a block of another stack."""
    blocks = {call.path for _, calls in found for call in calls}

    def inside(path: str) -> bool:
        parts = path.split(".")
        return any(".".join(parts[:n]) in blocks for n in range(1, len(parts)))

    kept = [item for item in found if not inside(item[1][0].path)]
    return sorted(kept, key=lambda item: item[1][0].order)


def _stack(module: nn.Module, group: _Group, calls: list[_Call]) -> Stack:
    last = group.calls.index(calls[-1]) + 1 if calls[-1] in group.calls else len(group.calls)
    norm = group.norms.get(last)
    following = group.calls[last].path if last < len(group.calls) else None
    if norm is None and following and _is_norm(module.get_submodule(following)):
        norm = following  # the norm is the next member of the same Sequential
    return Stack("", group.path, tuple(call.path for call in calls), norm)


def _prefixed(stacks: list[Stack]) -> tuple[Stack, ...]:
    """Several stacks take the first path component in which they differ: `encoder`, `decoder`."""
    if len(stacks) == 1:
        return tuple(stacks)
    parts = [stack.path.split(".") for stack in stacks]
    depth = min(map(len, parts))
    for level in range(depth):
        names = [part[level] for part in parts]
        if len(set(names)) == len(names):
            break
    else:
        names = [stack.path for stack in stacks]
    return tuple(
        Stack(name, stack.path, stack.blocks, stack.norm)
        for name, stack in zip(names, stacks, strict=True)
    )


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same values: usually the very same tensor, sometimes a copy or a view of it."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b)


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _container(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _is_list(module: nn.Module, group: _Group) -> bool:
    return isinstance(_container(module, group.path), nn.ModuleList)


def _parameters(module: nn.Module, calls: list[_Call]) -> int:
    paths = {call.path for call in calls}
    return sum(p.numel() for path in paths for p in module.get_submodule(path).parameters())


def _lists(module: nn.Module) -> str:
    found = [
        f"{path} ({len(part)} x {type(part[0]).__name__})"
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) and path
    ]
    shown = ", ".join(found[:12]) + (", ..." if len(found) > 12 else "")
    return f"Lists of modules in it: {shown}." if found else "It has no list of modules."
