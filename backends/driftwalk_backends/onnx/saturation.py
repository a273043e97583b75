"""Whether ONNX Runtime multiplies 8-bit numbers exactly on this CPU.

On x86 without VNNI its kernels add two products of an unsigned and a signed number in 16 bits, and
cut off what does not fit: 2 * 255 * 127. Weights of 7 bits always fit.
"""

from __future__ import annotations

from functools import cache

import numpy as np

_TERMS = 64


@cache
def saturates() -> bool:
    """Whether sums of the largest products come out too small; seen, not looked up."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.full((_TERMS, 16), 127, np.int8), "weights")
    given = helper.make_tensor_value_info("given", TensorProto.UINT8, (4, _TERMS))
    sums = helper.make_tensor_value_info("sums", TensorProto.INT32, (4, 16))
    product = helper.make_node("MatMulInteger", ["given", "weights"], ["sums"])
    graph = helper.make_graph([product], "products", [given], [sums], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"given": np.full((4, _TERMS), 255, np.uint8)})
    return bool((found != _TERMS * 255 * 127).any())
