"""ONNX Runtime rounds the inputs of products with int4 weights to int8, unless it is told not to.

`DequantizeLinear` of int4 blocks in front of `MatMul` becomes `MatMulNBits` at level extended and
above, with accuracy level 4 by default: a product of whole numbers, 6e-3 off what the graph says.
`session.qdq_matmulnbits_accuracy_level` = 1 keeps float32. onnxruntime 1.31.1.
"""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

random = np.random.default_rng(0)
numbers, steps = random.integers(-8, 8, (64, 32)), random.uniform(0.01, 0.02, (2, 32))
x = random.standard_normal((16, 64)).astype("f")
exact = x.astype("d") @ (numbers * np.repeat(steps.astype("f"), 32, 0).astype("d"))
nodes = [
    helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=32),
    helper.make_node("MatMul", ["x", "v"], ["y"]),
]
ends = [
    helper.make_tensor_value_info(n, TensorProto.FLOAT, [16, d]) for n, d in (("x", 64), ("y", 32))
]
stored = [
    helper.make_tensor("w", TensorProto.INT4, [64, 32], numbers.ravel()),
    helper.make_tensor("s", TensorProto.FLOAT, [2, 32], steps.ravel()),
]
graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
opset = [helper.make_opsetid("", 21)]
model = helper.make_model(graph, opset_imports=opset, ir_version=10).SerializeToString()
for level, accuracy in (("BASIC", ""), ("EXTENDED", ""), ("EXTENDED", "1")):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    if accuracy:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", accuracy)
    found = ort.InferenceSession(model, options).run(None, {"x": x})[0]
    off = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    print(level, f"accuracy level {accuracy or 'not given'}: {off:.1e} off")
