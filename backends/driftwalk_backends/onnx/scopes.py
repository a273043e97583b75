"""Scopes to points: which tensors of a graph leave the module that a point was taken from.

An exporter writes the module of each node down, in the node's metadata (`torch.onnx`, dynamo) or in
its name (TorchScript, optimum: `/transformer/h.0/mlp/Add`). A block's output is among the tensors
that are made inside its scope and used outside; its input among those that come in from outside.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from driftwalk.states import Point

from ..depth import INPUT
from .graph import Node, OnnxGraph

METADATA, NAMES = "scope metadata", "node names"
_INPUT_OF = "input of "


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
        found: set[str] = set()
        for scope in set(self.of_node):
            parts = scope.split(".") if scope else []
            found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        return frozenset(found)

    def leaving(self, point: Point) -> tuple[str, ...]:
        """Tensors that may be this point's state, in topological order; none where no scope says.

        For `embed` that is what comes into the first block from outside.
        """
        taken = point.module.startswith(_INPUT_OF)
        scope = self._named(point.module.removeprefix(_INPUT_OF))
        if scope is None or point.name.endswith(INPUT):
            return ()
        inside = {i for i, own in enumerate(self.of_node) if _within(own, scope)}
        outputs = {value.name for value in self._graph.outputs}
        found: dict[str, None] = {}
        if taken:
            for i in sorted(inside):
                names = self._graph.nodes[i].inputs
                found |= dict.fromkeys(
                    n for n in names if self._graph.producers.get(n, -1) not in (inside | {-1})
                )
            return self._in_order(found)
        for i in sorted(inside):
            for name in self._graph.nodes[i].outputs:
                used = self._graph.consumers.get(name, ())
                if name and (name in outputs or any(c not in inside for c in used)):
                    found[name] = None
        return tuple(found)

    def _in_order(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted(names, key=lambda name: self._graph.producers[name]))

    def _named(self, module: str) -> str | None:
        """The graph's word for a module: exporters add a wrapper's name, or drop an outer one."""
        if not module:
            return None
        if module in self.known:
            return module
        longer = [scope for scope in self.known if scope.endswith(f".{module}")]
        if longer:
            return min(longer, key=len) if len(longer) == 1 else None
        parts = module.split(".")
        for start in range(1, len(parts)):
            rest = ".".join(parts[start:])
            if rest in self.known and not rest.isdecimal():
                return rest
        return None


def scopes_of(graph: OnnxGraph) -> tuple[Scopes, ...]:
    """The ways in which this graph tells where its nodes come from, the best first."""
    ways = (Scopes(graph, METADATA), Scopes(graph, NAMES))
    return tuple(way for way in ways if way.known)


def _within(scope: str, outer: str) -> bool:
    return scope == outer or scope.startswith(f"{outer}.")


def _from_metadata(node: Node) -> str:
    """`['', 'm', 'm.h.0', 'add_3']`: modules from the outside in, then the operation itself."""
    if not node.scopes:
        return ""
    try:
        names = ast.literal_eval(node.scopes)
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
