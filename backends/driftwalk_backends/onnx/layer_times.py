"""ONNX Runtime's profile folded into blocks: how long each point took in an optimised graph.

The exported graph says which tensor a state is. A tensor belongs to the first point, in order of
execution, that needs it. Optimised, nodes are fused and renamed, but a fused node gives a tensor
that was there before: by it the node finds its point.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .export import STATE_PREFIX

AFTER = "logits"
"""Where what no state needs belongs: the end of the model."""


def tensor_points(graph: Any, points: Sequence[str]) -> dict[str, str]:
    """Tensor to point, for every tensor of the exported graph that a node makes."""
    maker = {name: node for node in graph.node for name in node.output}
    found: dict[str, str] = {}
    for point in points:
        waiting = [STATE_PREFIX + point]
        while waiting:
            name = waiting.pop()
            if name in maker and name not in found:
                found |= dict.fromkeys(maker[name].output, point)
                waiting += maker[name].input
    return {name: found.get(name, AFTER) for name in maker}


def node_points(
    optimised: Any, tensors: Mapping[str, str], points: Sequence[str]
) -> dict[str, str]:
    """Node of the optimised graph to point; what is new there goes with the last of its inputs."""
    order = {point: number for number, point in enumerate((*points, AFTER))}
    known = dict(tensors)
    found = {}
    for node in optimised.node:
        own = [known[name] for name in node.output if name in known]
        before = [known[name] for name in node.input if name in known]
        place = own[0] if own else max(before, key=order.__getitem__, default=points[0])
        known |= dict.fromkeys(node.output, place)
        found[node.name] = place
    return found


def fold(profile: Path, nodes: Mapping[str, str], points: Sequence[str]) -> dict[str, float]:
    """Seconds by point in the last run of a profile; in the order of the points."""
    spent = dict.fromkeys((*points, AFTER), 0.0)
    events = json.loads(profile.read_text())
    last = max((event["ts"] for event in events if event.get("name") == "model_run"), default=0)
    for event in events:
        name = event.get("name", "")
        if event.get("cat") == "Node" and event["ts"] >= last and name.endswith("_kernel_time"):
            place = nodes.get(name.removesuffix("_kernel_time"))
            if place is not None:
                spent[place] += event["dur"] / 1e6
    return {point: seconds for point, seconds in spent.items() if seconds > 0}
