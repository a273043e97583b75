"""Where a model's modules lie in a graph: by what its nodes say, and by its shape alone.

Scopes: an exporter writes the module of each node down, in the node's metadata (`torch.onnx`,
dynamo) or in its name (TorchScript, optimum: `/transformer/h.0/mlp/Add`). A block's output is among
the tensors that are made inside its scope and used outside; its input among those that come in.

Cuts: a transformer's residual stream is a row of narrow places, tensors that everything computed
from the embedding to the output must pass. What is computed from one cut to the next repeats, block
after block. Where the same row of operations follows the embedding exactly as often as the model
has layers, the last cut of each is that layer's output, whatever numbers it holds.

The points of a graph that comes alone are its blocks, if it says (scopes) or shows (cuts) which;
else every node. Both give the residual stream, as a hook on a torch block would.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from driftwalk.states import Point

from ..constants import STREAM_STARTS
from ..depth import INPUT
from .graph import COPIES, Node, OnnxGraph

METADATA, NAMES = "scope metadata", "node names"
STRUCTURE, NODES = "repeated structure", "node by node"
_INPUT_OF = "input of "
_SHAPES = {"Shape", "Size"}
_ASIDE = COPIES | _SHAPES | {"Constant", "ConstantOfShape", "Gather", "Concat", "Slice", "Expand"}
_ASIDE |= {"Range"}
"""Operations that exporters add or leave out from layer to layer."""
_NUMBERED = re.compile(r"(?P<group>.*?)(?P<number>\d+)\Z")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention", "Einsum", "LSTM", "GRU")

Work = tuple[tuple[str, int], ...]
"""What is computed between two narrow places: operations, and how many of each."""


class Scopes:
    """The modules that a graph's nodes say they come from, one way of saying it at a time."""

    def __init__(self, graph: OnnxGraph, way: str) -> None:
        self.way = way
        self._graph = graph
        read = _from_metadata if way == METADATA else _from_name
        self.of_node = [read(node) for node in graph.nodes]

    @cached_property
    def known(self) -> frozenset[str]:
        """Every scope and every scope around one."""
        return frozenset(outer for scope in set(self.of_node) for outer in around(scope))

    def leaving(self, point: Point) -> tuple[str, ...]:
        """Tensors that may be this point's state, in topological order; none where no scope says.

        For `embed` that is what comes into the first block from outside.
        """
        graph = self._graph
        scope = self._named(point.module.removeprefix(_INPUT_OF))
        if scope is None or point.name.endswith(INPUT):
            return ()
        below = f"{scope}."
        inside = {i for i, s in enumerate(self.of_node) if s == scope or s.startswith(below)}
        nodes = [graph.nodes[i] for i in sorted(inside)]
        if point.module.startswith(_INPUT_OF):
            taken = {name for node in nodes for name in node.inputs if name in graph.producers}
            outside = [name for name in taken if graph.producers[name] not in inside]
            return tuple(sorted(outside, key=lambda name: graph.producers[name]))
        outputs = {value.name for value in graph.outputs}
        return tuple(
            name
            for node in nodes
            for name in node.outputs
            if name in outputs or not inside.issuperset(graph.consumers.get(name, ()))
        )

    def _named(self, module: str) -> str | None:
        """The graph's word for a module: exporters add a wrapper's name, or drop an outer one."""
        if not module or module in self.known:
            return module or None
        longer = [scope for scope in self.known if scope.endswith(f".{module}")]
        if longer:
            return longer[0] if len(longer) == 1 else None
        parts = module.split(".")
        shorter = (".".join(parts[start:]) for start in range(1, len(parts)))
        return next((s for s in shorter if s in self.known and not s.isdecimal()), None)


def scopes_of(graph: OnnxGraph) -> tuple[Scopes, ...]:
    """The ways in which this graph tells where its nodes come from, the best first."""
    ways = (Scopes(graph, METADATA), Scopes(graph, NAMES))
    return tuple(way for way in ways if way.known)


def around(scope: str) -> list[str]:
    """A scope and those around it: `h`, `h.0`, `h.0.mlp` for the last."""
    parts = scope.split(".") if scope else []
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _from_metadata(node: Node) -> str:
    """`['', 'm', 'm.h.0', 'add_3']`: modules from the outside in, then the operation itself."""
    try:
        names = ast.literal_eval(node.scopes) if node.scopes else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ""
    return names[-2] if len(names) > 1 else ""


def _from_name(node: Node) -> str:
    """`/transformer/h.0/mlp/Add_1`: modules from the outside in, then the operation itself."""
    if not node.name.startswith("/"):
        return ""
    return ".".join(part for part in node.name.split("/")[1:-1] if part)


def cuts(graph: OnnxGraph, start: str | None = None) -> tuple[str, ...]:
    """Tensors that all paths from one tensor, or the inputs, to the first output go through."""
    return tuple(name for name, _ in _segments(graph, start))


def repeated(graph: OnnxGraph, start: str, times: int) -> tuple[str, ...]:
    """The last tensor of each of so many equal blocks behind a tensor; none if there are not."""
    found = _segments_behind(graph, start)
    works = [work for _, work in found]
    fitting = []
    for period in range(1, len(found) // times + 1):
        runs = 1
        while works[runs * period : (runs + 1) * period] == works[:period]:
            runs += 1
        if runs == times:
            fitting.append(period)
    if times < 2 or len(fitting) != 1:  # one block repeats nothing, two readings prove nothing
        return ()
    return tuple(found[(n + 1) * fitting[0] - 1][0] for n in range(times))


def _segments_behind(graph: OnnxGraph, start: str | None) -> list[tuple[str, Work]]:
    """The segments behind a tensor whose ends are no mere copies."""
    found = _segments(graph, start)
    return [(n, work) for n, work in found if n != start and graph.op_of(n) not in COPIES]


def _segments(graph: OnnxGraph, start: str | None) -> list[tuple[str, Work]]:
    """Every cut in order, with what is computed between it and the one before."""
    end = graph.producers.get(graph.outputs[0].name)
    if end is None:
        return []
    relevant = _between(graph, graph.producers.get(start, -1) if start else -1, end)
    last_use = {name: i for i in relevant for name in graph.nodes[i].inputs}
    found: list[tuple[str, Work]] = []
    needed: dict[str, int] = {}
    ops: list[str] = []
    for i in relevant:
        node = graph.nodes[i]
        ops.append(node.op)
        needed = {name: use for name, use in needed.items() if use > i}
        needed |= {name: last_use[name] for name in node.outputs if name in last_use}
        if len(needed) == 1 and (name := next(iter(needed))) in node.outputs:
            found.append((name, _work(ops)))
            ops = []
    return found


def _work(ops: Iterable[str]) -> Work:
    return tuple(sorted(Counter(op for op in ops if op not in _ASIDE).items()))


def _between(graph: OnnxGraph, first: int, end: int) -> list[int]:
    """The nodes on paths from one node to another.

    What only asks for a shape is no path: exporters carry shapes right through a graph.
    """
    back, ahead = {end}, {first}
    for i in range(end, -1, -1):
        node = graph.nodes[i]
        if i in back and node.op not in _SHAPES:
            back |= {graph.producers[name] for name in node.inputs if name in graph.producers}
    for i in range(max(first, 0), end + 1):
        node = graph.nodes[i]
        fed = {graph.producers.get(name, -1) for name in node.inputs}
        if node.op not in _SHAPES and not ahead.isdisjoint(fed):
            ahead.add(i)
    return sorted((back & ahead) - {-1})


@dataclass(frozen=True)
class GraphPoints:
    """How the points of a graph were found, and in topological order each with its tensor."""

    way: str
    tensors: dict[Point, str]


def points_of(graph: OnnxGraph, depth: str) -> GraphPoints:
    """The points to walk at a depth; where no blocks are found, every node is one."""
    if depth != "op":
        for scopes in scopes_of(graph):
            if found := _by_scope(graph, scopes):
                return GraphPoints(scopes.way, found)
        if found := _by_structure(graph):
            return GraphPoints(STRUCTURE, found)
    modules = scope_by_tensor(graph)
    named = (Point(name, modules.get(name) or graph.op_of(name)) for name in graph.floats)
    return GraphPoints(NODES, {point: point.name for point in named})


def scope_by_tensor(graph: OnnxGraph) -> dict[str, str]:
    """The module that each tensor was made in, as far as the graph says."""
    found: dict[str, str] = {}
    for scopes in scopes_of(graph):
        for node, scope in zip(graph.nodes, scopes.of_node, strict=True):
            for name in node.outputs:
                if name and scope:
                    found.setdefault(name, scope)
    return found


def _by_scope(graph: OnnxGraph, scopes: Scopes) -> dict[Point, str]:
    groups = _groups(graph, scopes)
    floats = set(graph.floats)
    found: dict[Point, str] = {}
    for group, members in groups.items():
        side = next((word for word in ("encoder", "decoder") if word in group.split(".")), group)
        prefix = f"{side.rstrip('.')}." if len(groups) > 1 else ""
        outs = [_last(graph, scopes, scope, floats) for scope in members]
        if not all(outs):
            continue
        module = f"input of {members[0]}"
        taken = scopes.leaving(Point("embed", module))
        start = next((n for n in taken if n in floats and outs[0] in cuts(graph, n)), None)
        if start is not None:
            found[Point(f"{prefix}embed", module)] = start
        layers = [Point(f"{prefix}layer.{i}", scope) for i, scope in enumerate(members)]
        found |= zip(layers, outs, strict=True)
    return dict(sorted(found.items(), key=lambda one: graph.producers[one[1]]))


def _groups(graph: OnnxGraph, scopes: Scopes) -> dict[str, list[str]]:
    """Numbered siblings that do alike, outermost only: `h.0`, `h.1` ... by what they share."""
    numbered: dict[str, dict[int, str]] = {}
    for scope in scopes.known:
        if match := _NUMBERED.match(scope):
            numbered.setdefault(match["group"], {})[int(match["number"])] = scope
    ops: dict[str, list[str]] = {}
    for node, scope in zip(graph.nodes, scopes.of_node, strict=True):
        for outer in around(scope):
            ops.setdefault(outer, []).append(node.op)
    found: dict[str, list[str]] = {}
    for group, members in numbered.items():
        ordered = [members[number] for number in sorted(members)]
        alike = Counter(_work(ops.get(scope, ())) for scope in ordered)
        shared, times = alike.most_common(1)[0]
        if len(ordered) > 1 and _has_products(shared) and times * 2 >= len(ordered):
            found[group] = ordered
    return {
        group: members
        for group, members in sorted(found.items())
        if not any(group.startswith(f"{m}.") for other in found.values() for m in other)
    }


def _has_products(work: Work) -> bool:
    return any(word in op for op, _ in work for word in _PRODUCTS)


def _last(graph: OnnxGraph, scopes: Scopes, scope: str, floats: set[str]) -> str:
    """The last tensor that leaves a scope and is used outside; a cache is only an output."""
    leaving = [n for n in scopes.leaving(Point("layer", scope)) if n in floats]
    used = [n for n in leaving if graph.consumers.get(n)]
    return next(reversed(used or leaving), "")


def _by_structure(graph: OnnxGraph) -> dict[Point, str]:
    """The start from which the most of the graph is one thing again and again."""
    best: dict[Point, str] = {}
    covered = 0
    for start in (None, *graph.floats[:STREAM_STARTS]):
        found = _segments_behind(graph, start)
        # The start is a narrow place itself; what is computed from it is told by those after it.
        row: list[tuple[str, Work]] = [(start, ()), *found] if start is not None else found
        first, period, times = _repeats([work for _, work in row])
        nodes = sum(n for _, work in row[first : first + period * times] for _, n in work)
        if nodes > covered:
            covered = nodes
            ends = range(first - 1, first + times * period, period)
            names = ["embed", *(f"layer.{number}" for number in range(times))]
            ended = {name: row[end][0] for name, end in zip(names, ends, strict=True) if end >= 0}
            best = {Point(name, graph.op_of(tensor)): tensor for name, tensor in ended.items()}
    return best


def _repeats(works: Sequence[Work]) -> tuple[int, int, int]:
    """The longest stretch that repeats itself: where it starts, its period, and how many times."""
    best, covered = (0, 0, 0), 0
    for period in range(1, len(works) // 2 + 1):
        run = 0
        for i in range(len(works) - period):
            run = run + 1 if works[i] == works[i + period] else 0
            times, first = run // period + 1, i - run + 1
            longer = times > 1 and times * period > covered
            if longer and any(map(_has_products, works[first : first + period])):
                best, covered = (first, period, times), times * period
    return best
