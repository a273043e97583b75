"""Finding the points of a model: its stacks of repeated blocks, the final norm, the output.

Nothing here knows a model by name. One run is watched: a *stack* is a numbered group of sibling
modules (a ModuleList, a Sequential, `block1`, `block2` ...) whose calls hand a float tensor on from
one to the next without changing its shape (blocks of one class in one list may change it). The
outermost such groups are the stacks. Where a list of blocks would be left out by that, a block may
also take what was only computed from the block before it: what lies between two blocks belongs to
the second. Large parts of a model outside of all stacks, and models
that have none, are walked over their module tree (tree.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from driftwalk.errors import ModelError

from . import tree
from .chains import Chain, Link, find_chains, is_inside, left_out, may_be_blocks
from .constants import HEAD_STACK_SHARE
from .layout import Stack
from .tree import Visit, Visits
from .watching import Group, Watched


def find_stacks(
    watched: Watched, like: Sequence[Stack] = ()
) -> tuple[tuple[Stack, ...], tuple[str, ...]]:
    """Name the stacks of a run, with notes on what of the model is none of them.

    `like` are those of a model that this one is compared with: parts of its module tree are the
    same here, by their paths. Which of them have weights, and how many, may differ.
    """
    groups = watched.groups.values()
    chains = find_chains(groups, directly=True)
    left = left_out(groups, chains)
    if left or (not chains and any(map(may_be_blocks, groups))):
        derived = find_chains(groups, directly=False)
        still_left = left_out(groups, derived)
        if derived and (not chains or sum(still_left.values()) < sum(left.values())):
            chains, left = derived, still_left
    theirs = [stack for stack in like if stack.walked]
    if theirs and len(theirs) == len(like) and (same := _found_again(theirs, watched.visits)):
        return tuple(stack for _, stack in same), ()
    computing = watched.visits.computing()
    known = {path for stack in like if not stack.walked for path in stack.blocks}
    calls = [call for chain in chains for call in chain.calls]
    # The weights of a quantised copy may lie where nobody counts them.
    alike = bool(known) and known <= {call.path for call in calls}
    most = (
        alike
        or _share({call.module for call in calls}, watched.visits, computing) >= HEAD_STACK_SHARE
    )
    if not chains or not most:
        return _walked(watched.visits, sum(computing.values()))
    stacks = _stacks_of(chains, watched.visits.counts)
    beside = _found_again(theirs, watched.visits)
    if not like or (theirs and not beside):
        beside = _beside(watched.visits, stacks, chains, computing)
    stacks += beside
    stacks.sort(key=lambda placed: placed[0])
    blocks = {path for _, stack in stacks for path in stack.blocks}
    notes = [
        _note_on_list(watched.groups[path], count)
        for path, count in left.items()
        if not any(is_inside(block, {path}) for block in blocks)
    ]
    notes += [note for _, stack in stacks if (note := _note_on_runs(stack, stacks))]
    notes += _note_on_share(watched.visits, blocks, computing)
    return tuple(stack for _, stack in stacks), tuple(dict.fromkeys(notes))


def _found_again(stacks: Iterable[Stack], visits: Visits) -> list[tuple[int, Stack]]:
    """The parts of another model's walks that ran here, too, each under its number there."""
    ran = {(visit.path, visit.call): visit for visit in visits.all() if visit.gives}
    found: list[tuple[int, Stack]] = []
    for stack in stacks:
        calls = list(zip(stack.blocks, stack.calls, strict=True))
        if places := [number for number, call in enumerate(calls) if call in ran]:
            parts = [ran[calls[number]] for number in places]
            made = _walk(stack.prefix, stack.path, parts, visits.counts)
            found.append((parts[0].order, replace(made, places=tuple(places))))
    return found


def _share(modules: Iterable[nn.Module], visits: Visits, computing: Mapping[int, int]) -> float:
    """How much of the weights that compute in a run belongs to these modules; all, if none do."""
    own = {key for module in modules for key in visits.parameters[module]}
    total = sum(computing.values())
    return sum(computing[key] for key in own if key in computing) / total if total else 1.0


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
    chains: Sequence[Chain],
    computing: Mapping[int, int],
) -> list[tuple[int, Stack]]:
    """Parts of the model outside of all stacks that are large, or have blocks of their own: a
    backbone, a small tower, a neck; and what is in a list of blocks, but no block of its stack, as
    what a stage does before its blocks.

    Norms that take turns with the blocks of a stack lie between them, whatever list they are in.
    """
    blocks = {path for _, stack in stacks for path in (*stack.blocks, stack.norm) if path}
    places: dict[str, list[Visit]] = {}
    for visit in visits.outside(blocks):
        if not isinstance(visit.module, nn.Embedding):
            places.setdefault(tree.list_of(visit.path), []).append(visit)
    taken, names = [stack.path for _, stack in stacks], {stack.prefix for _, stack in stacks}
    lists = set(taken)
    found: list[tuple[int, Stack]] = []
    for path, calls in places.items():
        large = _share({visit.module for visit in calls}, visits, computing) >= HEAD_STACK_SHARE
        of_a_stage = any(visit.parts and tree.is_numbered(visit.path) for visit in calls)
        if not (large or path in lists or of_a_stage or tree.have_blocks(calls)):
            continue
        if not any(visit.parts for visit in calls) and any(c.takes_turns(calls) for c in chains):
            continue
        if parts := tree.parts_of(calls, visits.outputs, sum(computing.values())):
            name = _name_beside(path, taken, names)
            found.append((parts[0].order, _walk(name, path, parts, visits.counts)))
            taken.append(path)
            names.add(name)
    return found


def _name_beside(path: str, others: Sequence[str], names: Set[str] = frozenset()) -> str:
    """The first component of a path that no other stack has in this place; else the whole path."""
    steps = path.split(".")
    for n, name in enumerate(steps):
        alike = (other.split(".")[: n + 1] == steps[: n + 1] for other in others)
        if not name.isdigit() and not any(alike) and name not in names:
            return name
    return f"{path}.rest" if path in names else path


def _stacks_of(chains: Sequence[Chain], ran: Counter[str]) -> list[tuple[int, Stack]]:
    names = _prefixes([chain.group.path for chain in chains])
    return [s for chain, n in zip(chains, names, strict=True) for s in chain.stacks(n, ran)]


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
    inside = _share([called[path] for path in blocks], visits, computing)
    if inside >= 0.5:
        return []
    places = {
        v.path: _share([v.module], visits, computing) for v in visits.outside(blocks) if v.weights
    }
    largest = sorted(places, key=lambda path: -places[path])[:4]
    outside = ", ".join(f"{path} ({places[path]:.0%})" for path in largest)
    return [
        f"The points enclose {inside:.0%} of the weights that compute in a run. Outside are "
        f"{outside or 'parameters of the model itself'}: an error there shows at the next point or "
        "output."
    ]


def stacks_by_hand(module: nn.Module, paths: Iterable[str], watched: Watched) -> tuple[Stack, ...]:
    """The stacks a user named: lists of blocks, single modules, or all modules that a glob names.

    In a list the children are the blocks, in the order they are called. Any other module, and what
    a glob matches, is a part of its own.
    """
    parts: list[Visit] = []
    chains: list[Chain] = []
    for path in paths:
        named = [p for p, _ in module.named_modules() if _matches(p, path)]
        if not named:
            raise ModelError(f"blocks={path!r}: no such module. {_lists(module)}")
        if named == [path] and (chain := _chain_by_hand(path, watched)):
            chains.append(chain)
            continue
        called = [visit for visit in watched.visits.all() if visit.path in named and visit.gives]
        if not called:
            raise ModelError(
                f"blocks={path!r}: in a run of the model nothing of it was called and gave a float "
                f"tensor. {_lists(module)}"
            )
        parts += called
    stacks = _stacks_of(chains, watched.visits.counts)
    if parts:
        parts.sort(key=lambda part: part.order)
        name = _name_beside(parts[0].path, [c.group.path for c in chains]) if chains else ""
        stacks.append((parts[0].order, _walk(name, "", parts, watched.visits.counts)))
    stacks.sort(key=lambda placed: placed[0])
    return tuple(stack for _, stack in stacks)


def _chain_by_hand(path: str, watched: Watched) -> Chain | None:
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
    return Chain(groups[0], calls, link)


def has_modules(module: nn.Module, blocks: str) -> bool:
    """Whether a module has everything that `blocks` names."""
    paths = [path for path, _ in module.named_modules()]
    patterns = [part.strip() for part in blocks.split(",")]
    return all(any(_matches(path, pattern) for path in paths) for pattern in patterns)


def _matches(path: str, pattern: str) -> bool:
    """Whether a path is what a glob names, step by step: `blocks.*` is no part of a block."""
    steps, globs = path.split("."), pattern.split(".")
    return len(steps) == len(globs) and all(map(fnmatchcase, steps, globs))


def _prefixes(paths: Sequence[str]) -> list[str]:
    """Several stacks take the first path component in which they differ: `encoder`, `decoder`."""
    if len(paths) < 2:
        return [""] * len(paths)
    levels = [*zip(*(path.split(".") for path in paths), strict=False)]
    names = next((level for level in levels if len(set(level)) == len(paths)), tuple(paths))
    return [f"stage.{name}" if name.isdigit() else name for name in names]


def _lists(module: nn.Module) -> str:
    lists = [
        f"{path} ({len(part)} x {type(part[0]).__name__})"
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList | nn.Sequential) and len(part) and path
    ]
    shown = ", ".join(lists[:12]) + (", ..." if len(lists) > 12 else "")
    return f"Lists of modules in it: {shown}." if lists else "It has no list of modules."
