"""Finding the points of a model: its stacks of repeated blocks, the final norm, the output.

Nothing here knows a model by name. One run is watched: a *stack* is a numbered group of sibling
modules (a ModuleList, a Sequential, `block1`, `block2` ...) whose calls hand a float tensor on from
one to the next without changing its shape (blocks of one class in one list may change it). The
outermost such groups are the stacks. Where a list of blocks would be left out by that, a second run
is watched in which a block may also take what was only computed from the block before it: what lies
between two blocks belongs to the second. Large parts of a model outside of all stacks, and models
that have none, are walked over their module tree (tree.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import groupby
from typing import Any

from torch import nn

from driftwalk.errors import ModelError

from . import tree
from .layout import Stack
from .tensors import Slot
from .tree import Visit, Visits
from .watching import Call, Group, Lineage, Watched, is_norm, watch

_SMALL_STACK = 0.1
"""A stack with less than this share of the largest one's parameters is part of a head."""


@dataclass(frozen=True)
class Link:
    """How the blocks of a group hand the residual stream on."""

    takes: Slot
    gives: Slot
    directly: bool = True
    """Whether nothing is computed between two blocks."""
    any_shape: bool = False
    """Whether a block may give another shape than it takes: blocks of one class in one list."""

    @classmethod
    def of(cls, calls: Sequence[Call], directly: bool, any_shape: bool = False) -> Link:
        """The input and the output by which most calls are chained; else the first of each."""
        first = cls(calls[0].stream, next(iter(calls[0].gives)), directly, any_shape)
        slots = [(takes, gives) for takes in calls[0].takes for gives in calls[0].gives]
        others = [cls(takes, gives, directly, any_shape) for takes, gives in slots]

        def fits(link: Link) -> tuple[int, int, int]:
            carried = [call for call in calls if link.carries(call)]
            keeps = sum(map(link.keeps_shape, carried))
            return sum(map(link.chained, carried)), len(carried), keeps

        return max([first, *others], key=fits)

    def carries(self, call: Call) -> bool:
        """Whether a call can be a block of a stack."""
        both = self.takes in call.takes and self.gives in call.gives
        return both and (self.any_shape or self.keeps_shape(call))

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
    runs: tuple[list[Call], ...] = ()
    """All chains of the same blocks in order, where a model runs them several times."""

    @cached_property
    def weights(self) -> int:
        return _count_weights(self.calls)

    @cached_property
    def kinds(self) -> set[type[nn.Module]]:
        return {type(call.module) for call in self.calls}

    @property
    def has_parts(self) -> bool:
        return all(any(call.module.children()) for call in self.calls)

    @property
    def is_alone(self) -> bool:
        """Whether it is the only block that ran of its list."""
        return self.group.is_list and len({call.path for call in self.group.calls}) == 1

    @property
    def keeps_shape(self) -> bool:
        return all(map(self.link.keeps_shape, self.calls))

    def takes_turns(self, calls: Sequence[Call | Visit]) -> bool:
        """Whether other calls begin before these end, and end after these began."""
        return self.calls[0].order < calls[-1].order and calls[0].order < self.calls[-1].order

    def stacks(self, prefix: str, ran: Counter[str]) -> Iterator[tuple[int, Stack]]:
        """A stack for each run, and when it begins."""
        for number, calls in enumerate(self.runs or (self.calls,), start=1):
            again = f"@{number}" if number > 1 else ""
            yield calls[0].order, self._stack(f"{prefix}{again}", calls, ran)

    def _stack(self, prefix: str, calls: list[Call], ran: Counter[str]) -> Stack:
        group, link = self.group, self.link
        last = group.calls.index(calls[-1]) + 1 if calls[-1] in group.calls else len(group.calls)
        norm = group.norms.get((last, link.gives))
        if norm is None and last < len(group.calls) and is_norm(group.calls[last].module):
            norm = group.calls[last].path  # the next member of the same Sequential
        if norm is None and not link.directly:
            norm = group.later_norms.get((last, link.gives))
        paths = tuple(call.path for call in calls)
        return Stack(
            prefix,
            group.path,
            paths,
            tuple(call.number for call in calls),
            sum(ran[path] for path in set(paths)),
            norm,
            link.takes or None,
            link.gives,
        )


def find_stacks(
    module: nn.Module, run: Callable[[], Any]
) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """Watch a run and name the stacks, with notes on what of the model is none of them."""
    watched = watch(module, run)
    chains = _chains(watched.groups.values(), directly=True)
    left = _left_out(watched.groups.values(), chains)
    if left or not chains:
        again = watch(module, run, Lineage())
        derived = _chains(again.groups.values(), directly=False)
        still_left = _left_out(again.groups.values(), derived)
        if derived and (not chains or sum(still_left.values()) < sum(left.values())):
            watched, chains, left = again, derived, still_left
    computing = watched.visits.computing()
    if _share({c.module for chain in chains for c in chain.calls}, computing) < _SMALL_STACK:
        return _walked(watched.visits, sum(computing.values()))
    stacks = _stacks_of(chains, watched.visits.counts)
    stacks += _beside(watched.visits, stacks, chains, computing)
    stacks.sort(key=lambda placed: placed[0])
    blocks = {path for _, stack in stacks for path in stack.blocks}
    notes = [
        _note_on_list(watched.groups[path], count)
        for path, count in left.items()
        if not any(_inside(block, {path}) for block in blocks)
    ]
    notes += [note for _, stack in stacks if (note := _note_on_runs(stack, stacks))]
    notes += _note_on_share(watched.visits, blocks, computing)
    return tuple(stack for _, stack in stacks), tuple(dict.fromkeys(notes))


def _share(modules: Iterable[nn.Module], computing: Mapping[int, int]) -> float:
    """How much of the weights that compute in a run belongs to these modules."""
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    total = sum(computing.values())
    return sum(size for key, size in computing.items() if key in own) / total if total else 0.0


def _walked(visits: Visits, total: int) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """The whole model as a walk over its module tree; without parts only outputs are compared."""
    parts = tree.parts_of([visits.root] if visits.root else [], visits.outputs, total)
    if not parts:
        return (), (
            "No part of the model could be looked at: what it computes lies in one module, or in "
            "none. Its outputs alone are compared.",
        )
    return (_walk("", "", parts, visits.counts),), (
        "No stack of repeated blocks was found that is most of the model, so its module tree is "
        f"walked: {len(parts)} parts, from {parts[0].path} to {parts[-1].path}. If a list of "
        "blocks is what should be walked, name it: blocks='path.to.stack' (--blocks).",
    )


def _walk(prefix: str, path: str, parts: Sequence[Visit], ran: Counter[str]) -> Stack:
    paths = tuple(part.path for part in parts)
    calls = tuple(part.call for part in parts)
    return Stack(prefix, path, paths, calls, sum(ran[p] for p in set(paths)), walked=True)


def _beside(
    visits: Visits,
    stacks: Sequence[tuple[int, Stack]],
    chains: Sequence[_Chain],
    computing: Mapping[int, int],
) -> list[tuple[int, Stack]]:
    """Large parts of the model outside of all stacks: a backbone, a neck, a head.

    Norms that take turns with the blocks of a stack lie between them, whatever list they are in.
    """
    blocks = {path for _, stack in stacks for path in (*stack.blocks, stack.norm) if path}
    places: dict[str, list[Visit]] = {}
    for visit in visits.outside(blocks):
        if not isinstance(visit.module, nn.Embedding):
            places.setdefault(tree.list_of(visit.path), []).append(visit)
    taken = [stack.path for _, stack in stacks]
    found: list[tuple[int, Stack]] = []
    for path, calls in places.items():
        if _share({visit.module for visit in calls}, computing) < _SMALL_STACK:
            continue
        if not any(visit.parts for visit in calls) and any(c.takes_turns(calls) for c in chains):
            continue
        if parts := tree.parts_of(calls, visits.outputs, sum(computing.values())):
            stack = _walk(_name_beside(path, taken), path, parts, visits.counts)
            found.append((parts[0].order, stack))
            taken.append(path)
    return found


def _name_beside(path: str, others: Sequence[str]) -> str:
    """The first component of a path that no other stack has in this place; else the whole path."""
    steps = path.split(".")
    for n, name in enumerate(steps):
        alike = (other.split(".")[: n + 1] == steps[: n + 1] for other in others)
        if not name.isdigit() and not any(alike):
            return name
    return path


def _stacks_of(chains: Sequence[_Chain], ran: Counter[str]) -> list[tuple[int, Stack]]:
    names = _prefixes([chain.group.path for chain in chains])
    return [s for chain, n in zip(chains, names, strict=True) for s in chain.stacks(n, ran)]


def _chains(groups: Iterable[Group], directly: bool) -> list[_Chain]:
    """The longest chains of the outermost groups, in order of execution."""
    chains = [chain for group in groups if (chain := _longest_chain(group, directly)) is not None]
    repeated = [chain for chain in chains if len(chain.calls) > 1]
    # `fc1` and `fc2` with something between them are no blocks; `block1` and `block2` are, where
    # there are no others.
    sure = [chain for chain in repeated if chain.group.is_list or chain.link.directly]
    compound = [chain for chain in repeated if chain.has_parts]
    chains = sure or compound or [chain for chain in chains if chain.is_alone]
    chains = [chain for chain in chains if not _is_of_stages(chain, chains)]
    blocks = {call.path for chain in chains for call in chain.calls}
    chains = [c for c in chains if not _inside(c.calls[0].path.rpartition(".")[0], blocks)]
    chains.sort(key=lambda chain: chain.calls[0].order)
    most = max((chain.weights for chain in chains), default=0)
    large = {kind for c in chains if c.weights >= _SMALL_STACK * most for kind in c.kinds}
    chains = [c for c in chains if c.weights >= _SMALL_STACK * most or c.kinds <= large]

    def lies_between(chain: _Chain, other: _Chain) -> bool:
        """Of two lists whose members take turns, the smaller lies between the larger's blocks."""
        smaller = other is not chain and chain.weights <= other.weights
        return smaller and chain.takes_turns(other.calls)

    return [
        chain
        for chain in chains
        if chain.link.directly or not any(lies_between(chain, other) for other in chains)
    ]


def _is_of_stages(chain: _Chain, chains: Sequence[_Chain]) -> bool:
    """Whether its members are stages, which change the shape, and most of them is blocks."""
    paths = {call.path for call in chain.calls}
    inner = [c for c in chains if _inside(c.calls[0].path.rpartition(".")[0], paths)]
    return not chain.keeps_shape and sum(c.weights for c in inner) >= chain.weights / 2


def _longest_chain(group: Group, directly: bool) -> _Chain | None:
    """The longest run of chained calls, and how they are chained."""
    if not group.calls:
        return None
    kinds = {type(call.module) for call in group.calls}
    # Blocks of one class, one right after the other: stages of a CNN change the shape.
    any_shape = group.container is not None and len(kinds) == 1
    links = [Link.of(group.calls, True, any_shape)]
    if not directly:
        links.append(Link.of(group.calls, False))
    chains = []
    for link in links:
        runs = _runs(group, link)
        longest = max(runs, key=len)
        paths = [call.path for call in longest]
        again = tuple(run for run in runs if [call.path for call in run] == paths)
        chains.append(_Chain(group, longest, link, again))
    best = max(chains, key=lambda chain: len(chain.calls))
    return best if best.calls else None


def _runs(group: Group, link: Link) -> list[list[Call]]:
    runs: list[list[Call]] = [[]]
    for call in group.calls:
        if not link.carries(call):
            runs.append([])
        elif link.chained(call) and runs[-1]:
            runs[-1].append(call)
        else:
            runs.append([call])
    if isinstance(group.container, nn.Sequential):
        runs = [part for run in runs for part in _same_class_parts(run)]
    return runs or [[]]


def _same_class_parts(run: list[Call]) -> list[list[Call]]:
    """In a Sequential, the longest run of one class is the stack, if there is one at all; modules
    of several classes are one only if all have parts: a convolution and its norm are no blocks."""
    parts = [list(calls) for _, calls in groupby(run, key=lambda call: type(call.module))]
    if len(parts) < len(run) or len(run) == 1:
        return parts
    return [run] if all(any(call.module.children()) for call in run) else []


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


def _note_on_runs(stack: Stack, stacks: Iterable[tuple[int, Stack]]) -> str:
    """Calls of a stack's blocks that no run of it has as points."""
    seen = {
        (path, call)
        for _, other in stacks
        for path, call in zip(other.blocks, other.calls, strict=True)
        if path in stack.blocks
    }
    if stack.ran == len(seen):
        return ""
    return (
        f"The blocks of {stack.path} were called {stack.ran} times, of which {len(seen)} in a row "
        "are points. An error in the other calls shows at the next point."
    )


def _note_on_share(visits: Visits, blocks: set[str], computing: Mapping[int, int]) -> list[str]:
    """What no point encloses, where that is most of the model."""
    called = {visit.path: visit.module for visit in visits.all()}
    inside = _share([called[path] for path in blocks], computing)
    if inside >= 0.5:
        return []
    places = {v.path: _share([v.module], computing) for v in visits.outside(blocks) if v.weights}
    largest = sorted(places, key=lambda path: -places[path])[:4]
    return [
        f"The points enclose {inside:.0%} of the weights that compute in a run. Outside are "
        f"{', '.join(f'{path} ({places[path]:.0%})' for path in largest)}: an error there shows at "
        "the next point or output."
    ]


def stacks_by_hand(
    module: nn.Module, paths: Iterable[str], run: Callable[[], Any]
) -> tuple[Stack, ...]:
    """The stacks a user named: lists of blocks, single modules, or all modules that a glob names.

    In a list the children are the blocks, in the order they are called. Any other module, and what
    a glob matches, is a part of its own.
    """
    watched = watch(module, run, Lineage())
    parts: list[Visit] = []
    chains: list[_Chain] = []
    for path in paths:
        named = [p for p, _ in module.named_modules() if p and fnmatchcase(p, path)]
        if not named:
            raise ModelError(f"blocks={path!r}: no such module. {_lists(module)}")
        if named == [path] and (chain := _chain_by_hand(path, watched)):
            chains.append(chain)
            continue
        called = [visit for visit in watched.visits.all() if visit.path in named]
        if not called:
            raise ModelError(
                f"blocks={path!r}: it was not called with a float tensor in a run of the model, "
                f"nor was anything in it. {_lists(module)}"
            )
        parts += called
    stacks = _stacks_of(chains, watched.visits.counts)
    if parts:
        parts.sort(key=lambda part: part.order)
        name = _name_beside(parts[0].path, [c.group.path for c in chains]) if chains else ""
        stacks.append((parts[0].order, _walk(name, "", parts, watched.visits.counts)))
    stacks.sort(key=lambda placed: placed[0])
    return tuple(stack for _, stack in stacks)


def _chain_by_hand(path: str, watched: Watched) -> _Chain | None:
    """The numbered children of a module, in the order they are called; None where there are none.

    They may stand in several groups: `conv1`, `block1`, `block2` ...
    """
    groups = [
        group
        for group in watched.groups.values()
        if any(call.path.rpartition(".")[0] == path for call in group.calls)
    ]
    calls = sorted((c for g in groups for c in g.calls), key=lambda call: call.order)
    if not calls:
        return None
    links = [Link.of(calls, directly) for directly in (True, False)]
    link = max(links, key=lambda link: sum(map(link.chained, calls)))
    return _Chain(groups[0], calls, link)


def has_modules(module: nn.Module, blocks: str) -> bool:
    """Whether a module has everything that `blocks` names."""
    paths = [path for path, _ in module.named_modules()]
    patterns = [part.strip() for part in blocks.split(",")]
    return all(any(fnmatchcase(path, pattern) for path in paths) for pattern in patterns)


def _prefixes(paths: Sequence[str]) -> list[str]:
    """Several stacks take the first path component in which they differ: `encoder`, `decoder`."""
    if len(paths) < 2:
        return [""] * len(paths)
    levels = [*zip(*(path.split(".") for path in paths), strict=False)]
    names = next((level for level in levels if len(set(level)) == len(paths)), tuple(paths))
    return [f"stage.{name}" if name.isdigit() else name for name in names]


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
