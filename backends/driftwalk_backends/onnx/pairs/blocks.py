"""The points of a graph that comes alone: its blocks, if it says or shows which; else every node.

Blocks are found from scopes (the modules its nodes say they come from), else from repeated
structure: the narrow places of the graph (`structure.cuts`) between which the same operations
come again and again. Both give the residual stream, as a hook on a torch block would.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftwalk.states import Point

from ..graph import OnnxGraph
from ..scopes import Scopes, scopes_of
from ..structure import COPIES, cuts, segments

STRUCTURE, NODES = "repeated structure", "node by node"

_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")
_PLUMBING = {"Constant", "Shape", "Gather", "Unsqueeze", "Squeeze", "Concat", "Cast", "Slice"}
_PLUMBING |= {"Reshape", "Identity", "ConstantOfShape", "Range", "Expand", "Flatten"}
_PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention", "Einsum", "LSTM", "GRU")
_STARTS = 40
"""Tensors near the top of the graph that are tried as the start of the residual stream."""


@dataclass(frozen=True)
class Place:
    """A point, and the tensor whose value is its state."""

    point: Point
    tensor: str


@dataclass(frozen=True)
class Places:
    """The places of a graph in topological order, and how they were found."""

    way: str
    all: tuple[Place, ...]


def places_of(graph: OnnxGraph, depth: str) -> Places:
    """The places to walk at a depth; where no blocks are found, every node is one."""
    if depth != "op":
        for scopes in scopes_of(graph):
            if found := _by_scope(graph, scopes):
                return Places(scopes.way, found)
        if found := _by_structure(graph):
            return Places(STRUCTURE, found)
    modules = scope_by_tensor(graph)
    nodes = [
        Place(Point(name, modules.get(name) or graph.op_of(name)), name) for name in graph.floats
    ]
    return Places(NODES, tuple(nodes))


def scope_by_tensor(graph: OnnxGraph) -> dict[str, str]:
    """The module that each tensor was made in, as far as the graph says."""
    found: dict[str, str] = {}
    for scopes in scopes_of(graph):
        for node, scope in zip(graph.nodes, scopes.of_node, strict=True):
            for name in node.outputs:
                if name and scope:
                    found.setdefault(name, scope)
    return found


def _by_scope(graph: OnnxGraph, scopes: Scopes) -> tuple[Place, ...]:
    groups = _groups(graph, scopes)
    floats = set(graph.floats)
    found: list[Place] = []
    for group, members in groups.items():
        prefix = _prefix(group, groups)
        outs = [_last(graph, scopes, scope, floats) for scope in members]
        if any(out is None for out in outs):
            continue
        taken = scopes.leaving(Point("embed", f"input of {members[0]}"))
        start = next((n for n in taken if n in floats and outs[0] in cuts(graph, n)), None)
        if start is not None:
            found.append(Place(Point(f"{prefix}embed", f"input of {members[0]}"), start))
        found += [
            Place(Point(f"{prefix}layer.{i}", scope), out)
            for i, (scope, out) in enumerate(zip(members, outs, strict=True))
            if out is not None
        ]
    return tuple(sorted(found, key=lambda place: graph.producers[place.tensor]))


def _groups(graph: OnnxGraph, scopes: Scopes) -> dict[str, list[str]]:
    """Numbered siblings that do alike, outermost only: `h.0`, `h.1` ... by what they share."""
    numbered: dict[str, dict[int, str]] = {}
    for scope in scopes.known:
        if match := _NUMBERED.match(scope):
            numbered.setdefault(match["group"], {})[int(match["number"])] = scope
    ops: dict[str, Counter[str]] = {}
    for node, scope in zip(graph.nodes, scopes.of_node, strict=True):
        parts = scope.split(".")
        for n in range(1, len(parts) + 1):
            ops.setdefault(".".join(parts[:n]), Counter())[node.op] += 1
    found: dict[str, list[str]] = {}
    for group, members in numbered.items():
        ordered = [members[number] for number in sorted(members)]
        alike = Counter(tuple(sorted(_worth(ops.get(s, Counter())))) for s in ordered)
        shared, times = alike.most_common(1)[0]
        products = any(word in op for op, _ in shared for word in _PRODUCTS)
        if len(ordered) > 1 and products and times * 2 >= len(ordered):
            found[group] = ordered
    return {
        group: members
        for group, members in sorted(found.items())
        if not any(group.startswith(f"{m}.") for other in found.values() for m in other)
    }


def _worth(ops: Counter[str]) -> list[tuple[str, int]]:
    return [(op, n) for op, n in ops.items() if op not in _PLUMBING]


def _prefix(group: str, groups: Iterable[str]) -> str:
    if len(list(groups)) == 1:
        return ""
    side = next((word for word in ("encoder", "decoder") if word in group.split(".")), "")
    return f"{side or group.rstrip('.')}."


def _last(graph: OnnxGraph, scopes: Scopes, scope: str, floats: set[str]) -> str | None:
    """The last tensor that leaves a scope and is used outside; a cache is only an output."""
    leaving = [n for n in scopes.leaving(Point("layer", scope)) if n in floats]
    used = [n for n in leaving if graph.consumers.get(n)]
    found = used or leaving
    return found[-1] if found else None


Work = tuple[tuple[str, int], ...]
"""What is computed between two narrow places: operations, and how many of each."""


def _by_structure(graph: OnnxGraph) -> tuple[Place, ...]:
    """The start from which the most of the graph is one thing again and again."""
    best: tuple[Place, ...] = ()
    covered = 0
    for start in (None, *graph.floats[:_STARTS]):
        found: list[tuple[str, Work]] = [
            (name, tuple(sorted(work.items())))
            for name, work in segments(graph, start)
            if name != start and graph.op_of(name) not in COPIES
        ]
        # The start is a narrow place itself; what is computed from it is told by those after it.
        row = [(start, ()), *found] if start is not None else found
        first, period, times = _repeats([work for _, work in row])
        nodes = sum(n for _, work in row[first : first + period * times] for _, n in work)
        if nodes > covered:
            names = [name for name, _ in row]
            best, covered = _stack(graph, names, first, period, times), nodes
    return best


def _stack(
    graph: OnnxGraph, names: Sequence[str], first: int, period: int, times: int
) -> tuple[Place, ...]:
    at = [first - 1 + number * period for number in range(times + 1)]
    points = ["embed", *(f"layer.{number}" for number in range(times))]
    return tuple(
        Place(Point(point, graph.op_of(names[place])), names[place])
        for point, place in zip(points, at, strict=True)
        if place >= 0
    )


def _repeats(works: Sequence[Work]) -> tuple[int, int, int]:
    """The longest stretch that repeats itself: where it starts, its period, and how many times."""
    best, covered = (0, 0, 0), 0
    for period in range(1, len(works) // 2 + 1):
        run = 0
        for i in range(len(works) - period):
            run = run + 1 if works[i] == works[i + period] else 0
            times, first = run // period + 1, i - run + 1
            once = [op for work in works[first : first + period] for op, _ in work]
            products = any(word in op for op in once for word in _PRODUCTS)
            if times > 1 and products and times * period > covered:
                best, covered = (first, period, times), times * period
    return best
