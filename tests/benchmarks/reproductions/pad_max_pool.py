"""ONNX Runtime moves a padding of zeros into `MaxPool`, which pads with minus infinity.

`Pad` with 0 in front of `MaxPool` (BiT's stem): where all numbers at the edge are negative, the
maximum is 0; once its optimiser has merged the two (level basic and above), it is not.
onnxruntime 1.31.1 and 1.30.0.
"""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

nodes = [
    helper.make_node("Pad", ["x", "pads"], ["padded"]),
    helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
]
taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])
given = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
pads = numpy_helper.from_array(np.array([0, 0, 1, 1, 0, 0, 1, 1]), "pads")
graph = helper.make_graph(nodes, "g", [taken], [given], [pads])
opset = [helper.make_opsetid("", 18)]
model = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    found = ort.InferenceSession(model, options).run(None, {"x": -np.ones((1, 1, 4, 4), "f")})[0]
    print(level, found.ravel().tolist(), "expected [0.0, 0.0, 0.0, -1.0]")
