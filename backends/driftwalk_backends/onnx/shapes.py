"""How large the tensors of a graph will be on given inputs, asked before anything runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..constants import SHAPE_ELEMENTS
from .graph import OnnxGraph, inferred


def tensor_bytes(graph: OnnxGraph, feed: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each tensor of a graph, as far as they are known before it runs."""
    typed = inferred(_without_weights(graph, feed))
    found: dict[str, int] = {}
    for value in [*typed.value_info, *typed.output]:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(dim.HasField("dim_value") for dim in kind.shape.dim):
            width = 8 if kind.elem_type in (7, 11, 13) else 2 if kind.elem_type in (10, 16) else 4
            found[value.name] = width * math.prod(dim.dim_value for dim in kind.shape.dim)
    return found


def _without_weights(graph: OnnxGraph, feed: Mapping[str, Any]) -> Any:
    """The graph on inputs of known shape, its weights turned into inputs."""
    from onnx.helper import make_tensor_value_info

    model = graph.proto
    skeleton = graph.emptied("sizes", [value.name for value in model.graph.output])
    skeleton.graph.node.extend(model.graph.node)
    for value in model.graph.input:
        if value.name in graph.weights:
            continue
        array: Any = feed.get(value.name)
        if hasattr(array, "shape") and value.type.HasField("tensor_type"):
            kind = value.type.tensor_type.elem_type
            value = make_tensor_value_info(value.name, kind, array.shape)  # noqa: PLW2901
        skeleton.graph.input.append(value)
    for tensor in graph.weights.values():
        if math.prod(tensor.dims) <= SHAPE_ELEMENTS and not tensor.external_data:
            skeleton.graph.initializer.append(tensor)
        else:
            value = make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            skeleton.graph.input.append(value)
    return skeleton
