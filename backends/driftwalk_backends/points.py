"""Finding the points of a model: its stacks of repeated blocks, the final norm, the output.

Nothing here knows a model by name. One run is watched: a *stack* is a numbered group of sibling
modules (a ModuleList, a Sequential, `block1`, `block2` ...) whose calls hand a float tensor on from
one to the next without changing its shape. The outermost such groups are the stacks. Where a list
of blocks would be left out by that, a second run is watched in which a block may also take what was
only computed from the block before it: what lies between two blocks belongs to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import nn

from driftwalk.errors import ModelError
from driftwalk.names import EMBED, NORM, in_stack, layer
from driftwalk.states import Point

from .depth import BLOCKS, Look
from .lineage import Lineage
from .model_outputs import NO_OUTPUTS, OutputPoints
from .shared import Shared
from .slots import Slot
from .watching import Call, Group, is_norm, watch

_SMALL_STACK = 0.1
"""A stack with less than this share of the largest one's parameters is part of a head."""


@dataclass(frozen=True)
class Stack:
    """A run of blocks in order of execution; a block applied L times stands here L times."""

    prefix: str
    path: str
    blocks: tuple[str, ...]
    norm: str | None = None
    takes: Slot | None = None
    """Where the blocks take the residual stream; None: their first float tensor."""
    gives: Slot | None = None
    """Where they give it."""
    shared: tuple[Shared, ...] = ()
    """What several blocks are handed beside the stream."""
    before: int = 0
    """Calls of these blocks before this run of them, in a model that runs them several times."""
    after: int = 0
    """Calls after it."""

    def name(self, rest: str) -> str:
        return in_stack(self.prefix, rest)

    @property
    def points(self) -> tuple[Point, ...]:
        layers = [Point(self.name(layer(i)), path) for i, path in enumerate(self.blocks)]
        norm = [Point(self.name(NORM), self.norm)] if self.norm else []
        return (Point(self.name(EMBED), f"input of {self.blocks[0]}"), *layers, *norm)


@dataclass(frozen=True)
class Layout:
    """All points of a model, in order of execution, and how they were confirmed."""

    stacks: tuple[Stack, ...]
    outputs: OutputPoints = NO_OUTPUTS
    """Which of the model's outputs are points."""
    confirmed: str = "unchecked"
    """What the model's own hidden_states said: see crosscheck.py."""
    notes: tuple[str, ...] = ()
    """What a reader of a report must know about how the points were found."""
    look: Look = BLOCKS
    """How far inside the blocks; `points` are those of block depth at any look."""

    @property
    def key(self) -> str:
        """Tells layouts apart: every point, its module, and where its blocks take and give it."""
        return repr((self.stacks, self.points))

    @property
    def points(self) -> tuple[Point, ...]:
        found = [point for stack in self.stacks for point in stack.points]
        return (*found, *self.outputs.points)


Run = tuple[Group, list[Call], "Link"]


@dataclass(frozen=True)
class Link:
    """How the blocks of a group hand the residual stream on."""

    takes: Slot
    gives: Slot
    directly: bool = True
    """Whether nothing is computed between two blocks."""

    def keeps_shape(self, call: Call) -> bool:
        form = call.takes.get(self.takes)
        return form is not None and len(form[0]) >= 2 and form[0] == self._given(call)

    def chained(self, call: Call) -> bool:
        return (self.gives, self.takes) in (call.taken if self.directly else call.derived)

    def _given(self, call: Call) -> Any:
        form = call.gives.get(self.gives)
        return None if form is None else form[0]


def find_stacks(
    module: nn.Module, run: Callable[[], Any]
) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """Watch a run and name the stacks, with notes on lists of blocks that are none of them.

    No stack at all is an error that says what to do.
    """
    groups = watch(module, run)
    found = _found(module, groups, directly=True)
    left = _left_out(module, groups, found)
    if left or not found:
        derived = watch(module, run, Lineage())
        more = _found(module, derived, directly=False)
        still = _left_out(module, derived, more)
        if more and (not found or sum(still.values()) < sum(left.values())):
            groups, found, left = derived, more, still
    if not found:
        raise ModelError(
            f"No stack of repeated blocks was found in {type(module).__name__}. Looked for "
            "numbered sibling modules (nn.ModuleList, nn.Sequential, block1, block2, ...) that "
            "hand a float tensor on from one to the next without changing its shape. Name the "
            f"stack by hand: blocks='path.to.stack' (--blocks). {_lists(module)}"
        )
    stacks = _prefixed([_stack(module, *item) for item in found])
    notes = [_note(module, path, count) for path, count in left.items()]
    notes += [_note_on_runs(stack) for stack in stacks if stack.before or stack.after]
    return stacks, tuple(notes)


def _found(module: nn.Module, groups: dict[str, Group], directly: bool) -> list[Run]:
    """The stacks, in order of execution."""
    runs = [run for group in groups.values() for run in _runs(module, group, directly)]
    repeated = [item for item in runs if len(item[1]) > 1]
    if any(_is_list(module, group) or link.directly for group, _, link in repeated):
        # `fc1` and `fc2` with something between them are a stack only where there is no other.
        repeated = [item for item in repeated if _is_list(module, item[0]) or item[2].directly]
    found = _outermost(repeated or [item for item in runs if _is_list(module, item[0])])
    weights = {id(calls): _parameters(module, calls) for _, calls, _ in found}
    most = max(weights.values(), default=0)
    found = [item for item in found if weights[id(item[1])] >= _SMALL_STACK * most]
    # Of two lists whose members take turns, the smaller lies between the blocks of the larger.
    return [
        item
        for item in found
        if item[2].directly
        or not any(
            other is not item and _take_turns(item, other) and not _outweighs(weights, item, other)
            for other in found
        )
    ]


def _take_turns(one: Run, other: Run) -> bool:
    (a, z), (b, y) = ((run[1][0].order, run[1][-1].order) for run in (one, other))
    return a < y and b < z


def _outweighs(weights: dict[int, int], one: Run, other: Run) -> bool:
    return weights[id(one[1])] > weights[id(other[1])]


def _left_out(module: nn.Module, groups: dict[str, Group], found: list[Run]) -> dict[str, int]:
    """Lists of blocks of one class that ran, and how many of those blocks no point tells apart."""
    points = {call.path for _, calls, _ in found for call in calls}
    least = _SMALL_STACK * max((_parameters(module, calls) for _, calls, _ in found), default=0)
    left: dict[str, int] = {}
    for group in groups.values():
        ran = {call.path for call in group.calls}
        if len(ran) < 2 or len({call.kind for call in group.calls}) > 1:
            continue
        if not _is_list(module, group) or _parameters(module, group.calls) < max(least, 1):
            continue
        if _inside(group.path, points) or any(_lies_between(module, group, r) for r in found):
            continue
        count = sum(not any(_inside(point, {path}) for point in points) for path in ran)
        if count:
            left[group.path] = count
    return {path: n for path, n in left.items() if not _inside(path, set(left) - {path})}


def _lies_between(module: nn.Module, group: Group, stack: Run) -> bool:
    """Whether the members of a smaller group take turns with a stack's blocks: norms in a list."""
    calls = group.calls
    turns = calls[0].order < stack[1][-1].order and stack[1][0].order < calls[-1].order
    return turns and _parameters(module, calls) < _parameters(module, stack[1])


def _inside(path: str, outer: set[str]) -> bool:
    """Whether a module is one of the outer ones, or is inside of one."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in outer for n in range(1, len(parts) + 1))


def _note(module: nn.Module, path: str, count: int) -> str:
    members = module.get_submodule(path)
    size = len(members) if isinstance(members, nn.ModuleList) else count
    kind = type(next(members.children())).__name__
    return (
        f"{count} of the {size} blocks of {path} ({kind}) ran, but are no points: they do not hand "
        "one float tensor of one shape on from each to the next. An error in them shows at the "
        f"next point. If they are the model's layers, name them: blocks={path!r} (--blocks)."
    )


def _note_on_runs(stack: Stack) -> str:
    calls = stack.before + len(stack.blocks) + stack.after
    return (
        f"The blocks of {stack.path} were called {calls} times, of which "
        f"{len(stack.blocks)} in a row are points. An error in the other calls shows at the "
        "next point."
    )


def stacks_by_hand(
    module: nn.Module, paths: Iterable[str], run: Callable[[], Any]
) -> tuple[Stack, ...]:
    """The stacks a user named: containers of blocks, in the order their blocks are called."""
    groups = watch(module, run, Lineage())
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
        links = [_link(calls, directly) for directly in (True, False)]
        link = max(links, key=lambda link: sum(map(link.chained, calls)))
        found.append(_stack(module, watched[0], calls, link))
    return _prefixed(found)


def has_modules(module: nn.Module, blocks: str) -> bool:
    """Whether a module has every stack that `blocks` names."""
    return all(_container(module, path.strip()) is not None for path in blocks.split(","))


def _link(calls: list[Call], directly: bool) -> Link:
    """The input and the output by which most calls are chained; else the first of each."""
    first = Link(calls[0].stream, next(iter(calls[0].gives)), directly)
    links = {first: None} | {
        Link(takes, gives, directly): None for takes in calls[0].takes for gives in calls[0].gives
    }

    def fits(link: Link) -> tuple[int, int]:
        return (
            sum(link.keeps_shape(call) and link.chained(call) for call in calls),
            sum(map(link.keeps_shape, calls)),
        )

    return max(links, key=fits)


def _runs(module: nn.Module, group: Group, directly: bool) -> list[Run]:
    """The longest run of chained, shape-keeping calls, and how they are chained."""
    if not group.calls:
        return []
    found = [(group, _longest(module, group, link), link) for link in _links(group, directly)]
    found = [item for item in found if item[1]]
    return [max(found, key=lambda item: len(item[1]))] if found else []


def _links(group: Group, directly: bool) -> list[Link]:
    direct = [_link(group.calls, directly=True)]
    return direct if directly else [*direct, _link(group.calls, directly=False)]


def _longest(module: nn.Module, group: Group, link: Link) -> list[Call]:
    runs: list[list[Call]] = []
    for call in group.calls:
        if not link.keeps_shape(call):
            runs.append([])
        elif link.chained(call) and runs and runs[-1]:
            runs[-1].append(call)
        else:
            runs.append([call])
    runs = [run for run in runs if run]
    if isinstance(_container(module, group.path), nn.Sequential):
        runs = [part for run in runs for part in _same_class_parts(run)]
    return max(runs, key=len, default=[])


def _same_class_parts(run: list[Call]) -> list[list[Call]]:
    """In a Sequential, the longest run of one class is the stack, if there is one at all."""
    parts = [list(calls) for _, calls in groupby(run, key=lambda call: call.kind)]
    return parts if max(map(len, parts)) > 1 else [run]


def _outermost(found: list[Run]) -> list[Run]:
    """Drop what runs inside a block of another stack."""
    blocks = {call.path for _, calls, _ in found for call in calls}
    kept = [item for item in found if not _inside(item[1][0].path.rpartition(".")[0], blocks)]
    return sorted(kept, key=lambda item: item[1][0].order)


def _stack(module: nn.Module, group: Group, calls: list[Call], link: Link) -> Stack:
    last = group.calls.index(calls[-1]) + 1 if calls[-1] in group.calls else len(group.calls)
    norm = group.norms.get((last, link.gives))
    following = group.calls[last].path if last < len(group.calls) else None
    if norm is None and following and is_norm(module.get_submodule(following)):
        norm = following  # the norm is the next member of the same Sequential
    if norm is None and not link.directly:
        norm = group.later_norms.get((last, link.gives))
    paths = tuple(call.path for call in calls)
    known = [call for call in group.calls if call.path in paths]
    start = known.index(calls[0]) if calls[0] in known else 0
    rest = max(0, len(known) - start - len(calls))
    stack = Stack("", group.path, paths, norm, link.takes or None, link.gives)
    return replace(stack, before=start, after=rest)


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
    return tuple(replace(stack, prefix=name) for name, stack in zip(names, stacks, strict=True))


def _container(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _is_list(module: nn.Module, group: Group) -> bool:
    return isinstance(_container(module, group.path), nn.ModuleList)


def _parameters(module: nn.Module, calls: list[Call]) -> int:
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
