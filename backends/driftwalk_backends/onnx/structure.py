"""The shape of a graph alone: its narrow places, and the blocks that repeat between them.

A transformer's residual stream is a row of *cuts*, tensors that everything computed from the
embedding to the output must pass. What is computed from one cut to the next repeats, block after
block. Where the same row of operations follows the embedding exactly as often as the model has
layers, the last cut of each is that layer's output, whatever numbers it holds.
"""

from __future__ import annotations

from collections import Counter

from .graph import OnnxGraph

COPIES = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout", "Transpose"}
"""Operations that hand the numbers of their first input on."""

_SHAPES = {"Shape", "Size"}
_ASIDE = COPIES | _SHAPES | {"Constant", "ConstantOfShape", "Gather", "Concat", "Slice", "Expand"}
"""Operations that exporters add or leave out from layer to layer."""


def cuts(graph: OnnxGraph, start: str | None = None) -> tuple[str, ...]:
    """Tensors that all paths from one tensor, or the inputs, to the first output go through."""
    return tuple(name for name, _ in segments(graph, start))


def repeated(graph: OnnxGraph, start: str, times: int) -> tuple[str, ...]:
    """The last tensor of each of so many equal blocks behind a tensor; none if there are not."""
    found = [
        (name, work)
        for name, work in segments(graph, start)
        if name != start and graph.op_of(name) not in COPIES
    ]
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


def segments(graph: OnnxGraph, start: str | None) -> list[tuple[str, Counter[str]]]:
    """Every cut in order, with what is computed between it and the one before."""
    end = graph.producers.get(graph.outputs[0].name)
    if end is None:
        return []
    relevant = _between(graph, graph.producers.get(start, -1) if start else -1, end)
    last_use: dict[str, int] = {}
    for i in relevant:
        for name in graph.nodes[i].inputs:
            last_use[name] = i
    found: list[tuple[str, Counter[str]]] = []
    needed: dict[str, int] = {}
    work: Counter[str] = Counter()
    for i in relevant:
        node = graph.nodes[i]
        work[node.op] += node.op not in _ASIDE
        needed = {name: use for name, use in needed.items() if use > i}
        needed |= {name: last_use[name] for name in node.outputs if name in last_use}
        if len(needed) == 1 and (name := next(iter(needed))) in node.outputs:
            found.append((name, +work))
            work = Counter()
    return found


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
        fed = [graph.producers.get(name, -1) for name in node.inputs]
        if node.op not in _SHAPES and any(source in ahead for source in fed):
            ahead.add(i)
    return sorted((back & ahead) - {-1})
