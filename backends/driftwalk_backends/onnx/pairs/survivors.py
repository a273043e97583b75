"""Which tensors are left once ONNX Runtime has optimised a graph.

Asking for a tensor inside a fused operation would undo the fusion, and show the arithmetic of
another graph than the one that runs. So the runtime writes down what it made of the graph, and only
tensors that are still there are looked at: the nearest shared boundaries of what was fused.
"""

from __future__ import annotations

from pathlib import Path

from ..graph import OnnxGraph


def made_by(graph: OnnxGraph) -> dict[str, str]:
    """The tensors of a graph, each with the operation that makes it."""
    return {name: node.op for node in graph.nodes for name in node.outputs if name}


def is_empty(path: Path) -> bool:
    """Whether nothing is left to compute."""
    import onnx

    return not onnx.load(str(path), load_external_data=False).graph.node


def swallowed(graph: OnnxGraph, left: dict[str, str]) -> dict[str, str]:
    """For each tensor that is gone, the operation it went into: what makes the next one left."""
    found: dict[str, str] = {}
    for node in reversed(graph.nodes):
        for name in node.outputs:
            if not name or name in left:
                continue
            for number in graph.consumers.get(name, ()):
                for after in graph.nodes[number].outputs:
                    into = left.get(after) or found.get(after)
                    if into is not None:
                        found.setdefault(name, into)
    return found
