"""Products of a graph that ONNX Runtime computes with less than the graph says."""

from __future__ import annotations

from .graph import OnnxGraph

_FOUR_BITS = (21, 22)
"""onnx.TensorProto.DataType of uint4 and int4."""


def fuses_int4(graph: OnnxGraph) -> bool:
    """Whether a product has 4-bit weights behind `DequantizeLinear`, in blocks."""
    return any(
        node.op == "DequantizeLinear"
        and any(a.name == "block_size" and a.i for a in node.proto.attribute)
        and node.inputs[0] in graph.weights
        and graph.weights[node.inputs[0]].data_type in _FOUR_BITS
        and any(taker.op == "MatMul" for taker in graph.takers(node.outputs[0]))
        for node in graph.nodes
    )
