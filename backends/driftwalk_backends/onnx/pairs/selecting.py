"""Inputs that select a branch: which numbers take which, asked of the graph itself.

Where the condition of an `If` comes of one small input of whole numbers or flags alone (a sampling
rate, a flag), the nodes between the two are run on every number that they store, on its
neighbours, on 0 and on 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..graph import Node, OnnxGraph, Value
from ..sessions import quick_session

_SMALL = 16
"""Elements of a stored tensor whose numbers may be what an input is compared with."""
_MOST_NUMBERS = 32


@dataclass(frozen=True)
class Selection:
    """One input that selects a branch of one `If`."""

    input: str
    node: str
    """The name of the `If`, or of what it gives."""
    takes: Mapping[int, bool]
    """Whether a number takes the then-branch."""
    named: tuple[int, ...]
    """The numbers that the graph itself stores."""

    @property
    def proposals(self) -> tuple[int, ...]:
        """A number for each way; first for the one that few numbers take: it was asked for."""
        ways = list(self.takes.values())
        numbers = sorted((*self.named, *self.takes), key=lambda n: ways.count(self.takes[n]))
        first: dict[bool, int] = {}
        for number in numbers:
            first.setdefault(self.takes[number], number)
        return tuple(first.values())

    def sentence(self, chosen: int) -> str:
        """Which numbers go which way, and which was taken."""
        ways = []
        for way in (True, False):
            numbers = [str(number) for number, takes in self.takes.items() if takes is way]
            if numbers:
                ways.append(f"{', '.join(numbers)} to its {'then' if way else 'else'}-branch")
        return (
            f"Input {self.input!r} selects a branch of If {self.node!r}: {'; '.join(ways)}. The "
            f"probe has {chosen}."
        )


def selections(graph: OnnxGraph) -> tuple[Selection, ...]:
    """The small inputs that alone decide on branches."""
    small = {v.name: v for v in graph.inputs if v.dtype is not None and v.dtype.kind in "iub"}
    small = {n: v for n, v in small.items() if all(d == 1 for d in v.shape)}
    found = []
    for node in graph.nodes:
        condition = node.proto.input[0] if node.op == "If" else ""
        if not condition:
            continue
        between, taken = _behind(graph, condition)
        if len(taken) == 1 and taken[0] in small:
            one = _asked(graph, small[taken[0]], condition, between)
            if one is not None:
                label = node.name or node.outputs[0]
                found.append(Selection(taken[0], label, *one))
    return tuple(found)


def _behind(graph: OnnxGraph, tensor: str) -> tuple[list[Node], list[str]]:
    """The nodes that a tensor is computed by, and the inputs of the graph that they take."""
    waiting, seen = [tensor], set[int]()
    inputs, names = dict[str, None](), {value.name for value in graph.inputs}
    while waiting:
        name = waiting.pop()
        if name in names:
            inputs[name] = None
        number = graph.producers.get(name)
        if number is not None and number not in seen:
            seen.add(number)
            waiting += graph.nodes[number].inputs
    return [graph.nodes[number] for number in sorted(seen)], list(inputs)


def _asked(
    graph: OnnxGraph, value: Value, condition: str, nodes: list[Node]
) -> tuple[dict[int, bool], tuple[int, ...]] | None:
    """What the condition is for each number, and the numbers that are stored; None: unknown."""
    named: dict[int, None] = {}
    used = dict.fromkeys(name for node in nodes for name in (*node.inputs, *node.outputs))
    for name in used:
        stored = graph.stored(name)
        if stored is not None and stored.size <= _SMALL and stored.dtype.kind in "iub":
            named |= dict.fromkeys(int(number) for number in stored.reshape(-1))
    around = [number + step for number in named for step in (-1, 1)]
    numbers = list(dict.fromkeys([*named, *around, 0, 1]))[:_MOST_NUMBERS]
    if value.dtype is not None and value.dtype.kind == "b":
        numbers = [0, 1]
    model = graph.emptied("condition", [condition])
    model.graph.node.extend(node.proto for node in nodes)
    model.graph.initializer.extend(t for n, t in graph.weights.items() if n in used)
    model.graph.input.extend(v for v in graph.proto.graph.input if v.name == value.name)
    takes: dict[int, bool] = {}
    try:
        session = quick_session(model.SerializeToString(), graph.path.parent)
        for number in numbers:
            array = np.full([1] * len(value.shape), number).astype(value.dtype)
            if int(array.reshape(-1)[0]) == number:
                takes[number] = bool(np.all(session.run([condition], {value.name: array})[0]))
    except Exception:  # whatever ONNX Runtime makes of it: to know more only helps
        return None
    return takes, tuple(number for number in named if number in takes)
