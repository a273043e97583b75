"""ONNX Runtime's Sigmoid loses the digits of what is near zero.

Seen in PP-DocLayout v3, whose reference points are sigmoids of about -10 and less: 2,000 times the
allowance. Its kernel is `0.5 + p(x) / q(x)`: off by up to 6e-8, whatever the size of the result.
"""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

x = np.linspace(-17, 0, 18, dtype=np.float32)
ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [len(x)]) for n in "xy"]
node = helper.make_node("Sigmoid", ["x"], ["y"])
model = helper.make_model(
    helper.make_graph([node], "g", ends[:1], ends[1:]),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)
session = onnxruntime.InferenceSession(
    model.SerializeToString(), providers=["CPUExecutionProvider"]
)
(found,) = session.run(None, {"x": x})
true = 1 / (1 + np.exp(-x.astype(np.float64)))
plain = (1 / (1 + np.exp(-x))).astype(np.float32)
for row in zip(x, true, np.abs(found - true) / true, np.abs(plain - true) / true, strict=True):
    print("sigmoid({:6.1f}) = {:.3e}, off by {:.1e}; numpy's float32 by {:.1e}".format(*row))
