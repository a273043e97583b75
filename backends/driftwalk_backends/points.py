"""Finding the points of a model: its stacks of repeated blocks, the final norm, the output.

Nothing here knows a model by name. One run is watched: a *stack* is a numbered group of sibling
modules (a ModuleList, a Sequential, `block1`, `block2` ...) whose calls hand a float tensor on from
one to the next without changing its shape. The outermost such groups are the stacks. Where a list
of blocks would be left out by that, a second run is watched in which a block may also take what was
only computed from the block before it: what lies between two blocks belongs to the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

from torch import nn

from driftwalk.errors import ModelError
from driftwalk.names import EMBED, NORM, in_stack, layer
from driftwalk.states import Point

from .depth import BLOCKS, Look
from .model_outputs import NO_OUTPUTS, OutputPoints
from .shared import Shared
from .tensors import Slot
from .watching import Call, Group, Lineage, is_norm, watch

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
    def layers(self) -> tuple[Point, ...]:
        return tuple(Point(self.name(layer(i)), path) for i, path in enumerate(self.blocks))

    @property
    def points(self) -> tuple[Point, ...]:
        norm = [Point(self.name(NORM), self.norm)] if self.norm else []
        return (Point(self.name(EMBED), f"input of {self.blocks[0]}"), *self.layers, *norm)


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
        return (*(p for stack in self.stacks for p in stack.points), *self.outputs.points)


@dataclass(frozen=True)
class Link:
    """How the blocks of a group hand the residual stream on."""

    takes: Slot
    gives: Slot
    directly: bool = True
    """Whether nothing is computed between two blocks."""

    @classmethod
    def of(cls, calls: Sequence[Call], directly: bool) -> Link:
        """The input and the output by which most calls are chained; else the first of each."""
        first = cls(calls[0].stream, next(iter(calls[0].gives)), directly)
        others = [cls(t, g, directly) for t in calls[0].takes for g in calls[0].gives]

        def fits(link: Link) -> tuple[int, int]:
            keeps = [call for call in calls if link.keeps_shape(call)]
            return sum(map(link.chained, keeps)), len(keeps)

        return max([first, *others], key=fits)

    def keeps_shape(self, call: Call) -> bool:
        taken, given = call.takes.get(self.takes), call.gives.get(self.gives)
        return (
            taken is not None and given is not None and len(taken[0]) > 1 and taken[0] == given[0]
        )

    def chained(self, call: Call) -> bool:
        return (self.gives, self.takes) in (call.taken if self.directly else call.derived)


@dataclass(frozen=True, eq=False)
class _Chain:
    """Calls of one group, each of which takes what the one before it gave: what a stack is."""

    group: Group
    calls: list[Call]
    link: Link

    @cached_property
    def weights(self) -> int:
        return _count_weights(self.calls)

    def takes_turns(self, calls: Sequence[Call]) -> bool:
        """Whether other calls begin before these end, and end after these began."""
        return self.calls[0].order < calls[-1].order and calls[0].order < self.calls[-1].order

    def stack(self) -> Stack:
        group, calls, link = self.group, self.calls, self.link
        last = group.calls.index(calls[-1]) + 1 if calls[-1] in group.calls else len(group.calls)
        norm = group.norms.get((last, link.gives))
        if norm is None and last < len(group.calls) and is_norm(group.calls[last].module):
            norm = group.calls[last].path  # the next member of the same Sequential
        if norm is None and not link.directly:
            norm = group.later_norms.get((last, link.gives))
        paths = tuple(call.path for call in calls)
        of_blocks = [call for call in group.calls if call.path in paths]
        before = of_blocks.index(calls[0]) if calls[0] in of_blocks else 0
        after = max(0, len(of_blocks) - before - len(calls))
        takes = link.takes or None
        return Stack("", group.path, paths, norm, takes, link.gives, before=before, after=after)


def find_stacks(
    module: nn.Module, run: Callable[[], Any]
) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """Watch a run and name the stacks, with notes on lists of blocks that are none of them.

    No stack at all is an error that says what to do.
    """
    groups = watch(module, run)
    chains = _chains(groups.values(), directly=True)
    left = _left_out(groups.values(), chains)
    if left or not chains:
        groups = watch(module, run, Lineage())
        derived = _chains(groups.values(), directly=False)
        still_left = _left_out(groups.values(), derived)
        if derived and (not chains or sum(still_left.values()) < sum(left.values())):
            chains, left = derived, still_left
    if not chains:
        raise ModelError(
            f"No stack of repeated blocks was found in {type(module).__name__}. Looked for "
            "numbered sibling modules (nn.ModuleList, nn.Sequential, block1, block2, ...) that "
            "hand a float tensor on from one to the next without changing its shape. Name the "
            f"stack by hand: blocks='path.to.stack' (--blocks). {_lists(module)}"
        )
    stacks = _prefixed([chain.stack() for chain in chains])
    notes = [_note_on_list(groups[path], count) for path, count in left.items()]
    notes += [_note_on_runs(stack) for stack in stacks if stack.before or stack.after]
    return stacks, tuple(notes)


def _chains(groups: Iterable[Group], directly: bool) -> list[_Chain]:
    """The longest chains of the outermost groups, in order of execution."""
    chains = [chain for group in groups if (chain := _longest_chain(group, directly)) is not None]
    repeated = [chain for chain in chains if len(chain.calls) > 1]
    # `fc1` and `fc2` with something between them are a stack only where there is no other.
    sure = [chain for chain in repeated if chain.group.is_list or chain.link.directly]
    chains = sure or repeated or [chain for chain in chains if chain.group.is_list]
    blocks = {call.path for chain in chains for call in chain.calls}
    chains = [c for c in chains if not _inside(c.calls[0].path.rpartition(".")[0], blocks)]
    chains.sort(key=lambda chain: chain.calls[0].order)
    most = max((chain.weights for chain in chains), default=0)
    chains = [chain for chain in chains if chain.weights >= _SMALL_STACK * most]

    def lies_between(chain: _Chain, other: _Chain) -> bool:
        """Of two lists whose members take turns, the smaller lies between the larger's blocks."""
        smaller = other is not chain and chain.weights <= other.weights
        return smaller and chain.takes_turns(other.calls)

    return [
        chain
        for chain in chains
        if chain.link.directly or not any(lies_between(chain, other) for other in chains)
    ]


def _longest_chain(group: Group, directly: bool) -> _Chain | None:
    """The longest run of chained, shape-keeping calls, and how they are chained."""
    if not group.calls:
        return None
    links = [Link.of(group.calls, way) for way in ((True,) if directly else (True, False))]
    chains = [_Chain(group, _longest_run(group, link), link) for link in links]
    longest = max(chains, key=lambda chain: len(chain.calls))
    return longest if longest.calls else None


def _longest_run(group: Group, link: Link) -> list[Call]:
    runs: list[list[Call]] = [[]]
    for call in group.calls:
        if not link.keeps_shape(call):
            runs.append([])
        elif link.chained(call) and runs[-1]:
            runs[-1].append(call)
        else:
            runs.append([call])
    if isinstance(group.container, nn.Sequential):
        runs = [part for run in runs for part in _same_class_parts(run)]
    return max(runs, key=len)


def _same_class_parts(run: list[Call]) -> list[list[Call]]:
    """In a Sequential, the longest run of one class is the stack, if there is one at all."""
    parts = [list(calls) for _, calls in groupby(run, key=lambda call: type(call.module))]
    return parts if len(parts) < len(run) else [run]


def _left_out(groups: Iterable[Group], chains: list[_Chain]) -> dict[str, int]:
    """Lists of blocks of one class that ran, and how many of those blocks no point tells apart."""
    points = {call.path for chain in chains for call in chain.calls}
    least = max(1, _SMALL_STACK * max((chain.weights for chain in chains), default=0))
    left: dict[str, int] = {}
    for group in groups:
        ran = {call.path for call in group.calls}
        kinds = {type(call.module) for call in group.calls}
        if not group.is_list or len(ran) < 2 or len(kinds) > 1 or _inside(group.path, points):
            continue
        weights = _count_weights(group.calls)
        # Members of a smaller list that take turns with a stack's blocks: norms in a list.
        if weights < least or any(
            weights < chain.weights and chain.takes_turns(group.calls) for chain in chains
        ):
            continue
        if count := sum(not any(_inside(point, {path}) for point in points) for path in ran):
            left[group.path] = count
    return {path: n for path, n in left.items() if not _inside(path, set(left) - {path})}


def _inside(path: str, outer: set[str]) -> bool:
    """Whether a module is one of the outer ones, or is inside of one."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in outer for n in range(1, len(parts) + 1))


def _note_on_list(group: Group, count: int) -> str:
    blocks = group.container
    assert isinstance(blocks, nn.ModuleList)
    return (
        f"{count} of the {len(blocks)} blocks of {group.path} ({type(blocks[0]).__name__}) ran, "
        "but are no points: they do not hand one float tensor of one shape on from each to the "
        "next. An error in them shows at the next point. If they are the model's layers, name "
        f"them: blocks={group.path!r} (--blocks)."
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
    stacks = []
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
        links = [Link.of(calls, directly) for directly in (True, False)]
        link = max(links, key=lambda link: sum(map(link.chained, calls)))
        stacks.append(_Chain(watched[0], calls, link).stack())
    return _prefixed(stacks)


def has_modules(module: nn.Module, blocks: str) -> bool:
    """Whether a module has every stack that `blocks` names."""
    try:
        return all(module.get_submodule(path.strip()) is not None for path in blocks.split(","))
    except AttributeError:
        return False


def _prefixed(stacks: list[Stack]) -> tuple[Stack, ...]:
    """Several stacks take the first path component in which they differ: `encoder`, `decoder`."""
    if len(stacks) == 1:
        return tuple(stacks)
    levels = [*zip(*(stack.path.split(".") for stack in stacks), strict=False)]
    paths = tuple(stack.path for stack in stacks)
    names = next((level for level in levels if len(set(level)) == len(stacks)), paths)
    return tuple(replace(stack, prefix=name) for name, stack in zip(names, stacks, strict=True))


def _count_weights(calls: Iterable[Call]) -> int:
    return sum(p.numel() for module in {c.module for c in calls} for p in module.parameters())


def _lists(module: nn.Module) -> str:
    lists = [
        f"{path} ({len(part)} x {type(part[0]).__name__})"
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) and path
    ]
    shown = ", ".join(lists[:12]) + (", ..." if len(lists) > 12 else "")
    return f"Lists of modules in it: {shown}." if lists else "It has no list of modules."
