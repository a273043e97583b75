"""A graph as one list of nodes: functions inlined, and of each `If` the branch that a probe takes.

What is computed stays the same; what lies in branches gets names of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import branches
from ..sessions import quick_session

_DEEPEST = 8
"""How deep branches may lie in branches."""


def flat(model: Any, folder: Path, feed: Mapping[str, Any]) -> Any:
    """A copy of a model (onnx.ModelProto) without functions, and without the `If`s that it takes.

    Branches deeper than a few levels, and those inside loops, stay.
    """
    import onnx
    from onnx import inliner

    if model.functions:
        made = inliner.inline_local_functions(model)
    else:
        made = onnx.ModelProto()
        made.CopyFrom(model)
    for _ in range(_DEEPEST):
        conditions = {n.input[0] for n in made.graph.node if n.op_type == "If" and not n.domain}
        if not conditions:
            break
        _inline(made.graph, _asked(made, sorted(conditions), folder, feed))
    return made


def _asked(model: Any, names: list[str], folder: Path, feed: Mapping[str, Any]) -> dict[str, bool]:
    """What each condition is on these inputs."""
    import onnx

    stored = {t.name: t for t in model.graph.initializer}
    given = {name: np.asarray(feed[name]) for name in names if name in feed}
    given |= {n: onnx.numpy_helper.to_array(stored[n]) for n in names if n in stored}
    computed = [name for name in names if name not in given]
    if computed:
        outputs = model.graph.output
        before = len(outputs)
        outputs.extend(onnx.ValueInfoProto(name=name) for name in computed)
        try:
            data = model.SerializeToString()
        finally:
            del outputs[before:]
        session = quick_session(data, folder)
        taken = {i.name: feed[i.name] for i in session.get_inputs()}
        given |= dict(zip(computed, session.run(computed, taken), strict=True))
    return {name: bool(np.all(value)) for name, value in given.items()}


def _inline(graph: Any, takes: Mapping[str, bool]) -> None:
    import onnx
    from onnx import helper

    kept: list[Any] = []
    for number, item in enumerate(graph.node):
        if item.op_type != "If" or item.domain:
            kept.append(item)
            continue
        word = "then_branch" if takes[item.input[0]] else "else_branch"
        branch = onnx.GraphProto()
        branch.CopyFrom(next(a.g for a in item.attribute if a.name == word))
        prefix = f"{item.name or item.output[0]}.{number}/"
        made = {name for node in branch.node for name in node.output if name}
        made |= {tensor.name for tensor in branch.initializer}
        own = {name: prefix + name for name in made}
        for tensor in branch.initializer:
            tensor.name = own[tensor.name]
        for node in branch.node:
            renamed(node, own)
        graph.initializer.extend(branch.initializer)
        kept += branch.node
        kept += [
            helper.make_node("Identity", [own.get(inner.name, inner.name)], [outer])
            for inner, outer in zip(branch.output, item.output, strict=True)
            if outer
        ]
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def renamed(node: Any, names: Mapping[str, str]) -> None:
    """Give tensors other names in a node, and in its branches as far as they mean the same."""
    for place in (node.input, node.output):
        for i, name in enumerate(place):
            place[i] = names.get(name, name)
    for inner in branches(node):
        hidden = {value.name for value in inner.input}
        hidden |= {tensor.name for tensor in inner.initializer}
        hidden |= {name for item in inner.node for name in item.output}
        outer = {name: new for name, new in names.items() if name not in hidden}
        for item in inner.node:
            renamed(item, outer)
        for value in inner.output:
            value.name = outer.get(value.name, value.name)
