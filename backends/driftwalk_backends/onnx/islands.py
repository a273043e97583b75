"""Graphs in half precision, parts of which were left in float32 (`op_block_list` and the like).

What a point computes in is told by the tensors between the point before and itself: the coarsest of
their types, weights included. A graph of one type throughout has no mixture.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from driftwalk.dtypes import FORMATS
from driftwalk.mixture import Mixture

from .finding import Found
from .graph import FLOATS, OnnxGraph
from .parts import Parts


def mixture_of(parts: Parts, found: Sequence[Found]) -> Mixture | None:
    """The types point by point; None where all are of one, or where they are not known."""
    if len(parts.graphs) != 1:
        return None
    (graph,) = parts.graphs
    types = _types(graph)
    if len(set(types.values())) < 2:
        return None
    dtypes, stored, seen = dict[str, str](), dict[str, str](), set[str]()
    for one in found:
        tensor = parts.split(one.key)[1]
        since = _since(graph, tensor, seen)
        if graph.op_of(tensor) == "Cast":  # it is handed on in another type than it was made in
            since = [name for name in since if name != tensor]
        taken = [types[name] for name in since if name in types]
        if taken:
            dtypes[one.point.name] = _coarsest(taken)
        own = types.get(tensor, "")
        if own and taken and _coarsest([own, *taken]) == own != _coarsest(taken):
            stored[one.point.name] = own
    if not dtypes:
        return None
    coarsest = _coarsest(dtypes.values())
    alike = set(dtypes.values()) == {coarsest}
    return Mixture(coarsest) if alike else Mixture(coarsest, dtypes, stored)


def _types(graph: OnnxGraph) -> dict[str, str]:
    """Of every float tensor whose type is known: weights', declared, and inferred ones."""
    import onnx

    types = {name: one.data_type for name, one in graph.weights.items()}
    halves = {n for n, kind in types.items() if FLOATS.get(kind) in ("fp16", "bf16")}
    casts = any(node.op == "Cast" for node in graph.nodes)
    if not halves and not casts:
        return {}
    try:
        inferred = onnx.shape_inference.infer_shapes(graph.proto)
    except (ValueError, RuntimeError, onnx.shape_inference.InferenceError):
        return {}  # too large to be handed over, or of operations that nobody declares
    for value in (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input):
        types.setdefault(value.name, value.type.tensor_type.elem_type)
    return {name: FLOATS[kind] for name, kind in types.items() if kind in FLOATS}


def _since(graph: OnnxGraph, tensor: str, seen: set[str]) -> list[str]:
    """The tensors that it is made of, but for those that an earlier point was made of."""
    made, left = [], [tensor]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        made.append(name)
        node = graph.maker(name)
        left += [] if node is None else [one for one in node.inputs if one]
    return made


def _coarsest(names: Iterable[str]) -> str:
    return max(names, key=lambda name: FORMATS[name].roundoff, default="")
