"""Chains of blocks: numbered siblings that hand a float tensor on from each to the next.

Found in what one run showed (watching.py). A chain is what becomes a stack of a model (points.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from torch import nn

from .constants import HEAD_STACK_SHARE
from .layout import Stack
from .tensors import Slot
from .tree import Visit, paths_to
from .watching import Call, Group, is_norm


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
class Chain:
    """Calls of one group, each of which takes what the one before it gave: what a stack is."""

    group: Group
    calls: list[Call]
    link: Link
    runs: tuple[list[Call], ...] = ()
    """All chains of the same blocks in order, where a model runs them several times."""

    @cached_property
    def weights(self) -> int:
        return _count_weights(self.group, self.calls)

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
            self._beside(calls[1:]),
        )

    def _beside(self, later: list[Call]) -> tuple[Slot, ...]:
        """What each block makes anew, and hands on to the next, beside the stream."""
        handed = [{slot for slot, _ in call.taken} - call.handed_back for call in later]
        found = set.intersection(*handed) if handed else set()
        return tuple(sorted(found - {self.link.gives}, key=repr))


def find_chains(groups: Iterable[Group], directly: bool) -> list[Chain]:
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
    chains = [c for c in chains if not is_inside(c.calls[0].path.rpartition(".")[0], blocks)]
    chains.sort(key=lambda chain: chain.calls[0].order)
    most = max((chain.weights for chain in chains), default=0)
    large = {kind for c in chains if c.weights >= HEAD_STACK_SHARE * most for kind in c.kinds}
    chains = [c for c in chains if c.weights >= HEAD_STACK_SHARE * most or c.kinds <= large]

    def lies_between(chain: Chain, other: Chain) -> bool:
        """Of two lists whose members take turns, the smaller lies between the larger's blocks."""
        smaller = other is not chain and chain.weights <= other.weights
        return smaller and chain.takes_turns(other.calls)

    return [
        chain
        for chain in chains
        if chain.link.directly or not any(lies_between(chain, other) for other in chains)
    ]


def _is_of_stages(chain: Chain, chains: Sequence[Chain]) -> bool:
    """Whether its members are stages, which change the shape, and most of them is blocks."""
    paths = {call.path for call in chain.calls}
    inner = [c for c in chains if is_inside(c.calls[0].path.rpartition(".")[0], paths)]
    return not chain.keeps_shape and sum(c.weights for c in inner) >= chain.weights / 2


def _longest_chain(group: Group, directly: bool) -> Chain | None:
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
        chains.append(Chain(group, longest, link, again))
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


def may_be_blocks(group: Group) -> bool:
    """Whether two or more of the siblings ran, and are in a list or have parts themselves."""
    ran = {call.path: call.module for call in group.calls}
    return len(ran) > 1 and (group.is_list or all(any(m.children()) for m in ran.values()))


def left_out(groups: Iterable[Group], chains: list[Chain]) -> dict[str, int]:
    """Lists of blocks of one class that ran, and how many of those blocks no point tells apart."""
    points = {call.path for chain in chains for call in chain.calls}
    around = {outer for point in points for outer in paths_to(point)}
    least = max(1, HEAD_STACK_SHARE * max((chain.weights for chain in chains), default=0))
    left: dict[str, int] = {}
    for group in groups:
        ran = {call.path for call in group.calls}
        kinds = {type(call.module) for call in group.calls}
        if not group.is_list or len(ran) < 2 or len(kinds) > 1 or is_inside(group.path, points):
            continue
        weights = _count_weights(group, group.calls)
        # Members of a smaller list that take turns with a stack's blocks: norms in a list.
        if weights < least or any(
            weights < chain.weights and chain.takes_turns(group.calls) for chain in chains
        ):
            continue
        if count := len(ran - around):
            left[group.path] = count
    return {path: n for path, n in left.items() if not is_inside(path, set(left) - {path})}


def is_inside(path: str, outer: set[str]) -> bool:
    """Whether a module is one of the outer ones, or is inside of one."""
    return any(part in outer for part in paths_to(path))


def _count_weights(group: Group, calls: Iterable[Call]) -> int:
    return sum(map(group.visits.weights_of, {call.module for call in calls}))
