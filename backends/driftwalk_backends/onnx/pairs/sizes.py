"""How large the tensors of a graph will be on a probe, before it runs: what bounds the memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from driftwalk.dtypes import Array

from ..graph import OnnxGraph

MOST_BYTES = 1 << 30
"""States that two sessions may hold at once."""

_SMALL = 64
"""Stored tensors of so few elements may be shapes, and are kept; weights are left out."""


def sizes(graph: OnnxGraph, feed: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each tensor, as far as shape inference knows."""
    import onnx

    skeleton = _without_weights(graph.proto, feed)
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True)
    except Exception:  # it raises whatever a broken graph makes it raise; sizes are only a help
        return {}
    found: dict[str, int] = {}
    for value in [*inferred.graph.value_info, *inferred.graph.output]:
        kind = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if kind.HasField("shape") and all(dim is not None for dim in dims):
            width = 8 if kind.elem_type in (7, 11, 13) else 2 if kind.elem_type in (10, 16) else 4
            found[value.name] = width * math.prod(dim or 0 for dim in dims)
    return found


def _without_weights(model: Any, feed: Mapping[str, Any]) -> Any:
    """The graph on inputs of known shape, its weights turned into inputs."""
    import onnx

    skeleton = onnx.ModelProto()
    skeleton.ir_version = model.ir_version
    skeleton.opset_import.extend(model.opset_import)
    skeleton.functions.extend(model.functions)
    graph = skeleton.graph
    graph.name = "sizes"
    graph.node.extend(model.graph.node)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        copy = graph.input.add()
        copy.CopyFrom(value)
        array = feed.get(value.name)
        if hasattr(array, "shape") and value.type.HasField("tensor_type"):
            dims: Sequence[int] = array.shape if array is not None else ()
            kind = value.type.tensor_type.elem_type
            copy.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, dims))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL and not tensor.external_data:
            graph.initializer.append(tensor)
        else:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return skeleton


def grouped(
    names: Iterable[str], known: Mapping[str, int], most: int | None = None
) -> list[list[str]]:
    """Tensors in order, in as few groups as keep two sessions within the bound.

    One of unknown size counts as the largest that is known; a tensor larger than the bound is a
    group of its own.
    """
    bound = MOST_BYTES if most is None else most
    unknown = max(known.values(), default=0)
    groups: list[list[str]] = [[]]
    held = 0
    for name in names:
        size = 2 * known.get(name, unknown)
        if groups[-1] and held + size > bound:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return [group for group in groups if group]


def held(*sides: Mapping[str, Array]) -> int:
    """Bytes that some arrays hold."""
    return sum(array.nbytes for side in sides for array in side.values())
