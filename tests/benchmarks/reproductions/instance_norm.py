"""ONNX Runtime's `InstanceNormalization`, which GroupNorm becomes, is 6 to 13 times as far off as
PyTorch's GroupNorm: it adds up thousands of numbers one by one (MobileViTV2). onnxruntime 1.31.1.
"""

import numpy as np
import onnxruntime
import torch

torch.manual_seed(0)
norm, x = torch.nn.GroupNorm(1, 64).eval(), torch.randn(2, 64, 32, 32) + 3
graph = torch.onnx.export(norm, (x,), dynamo=True, verbose=False).model_proto
session = onnxruntime.InferenceSession(graph.SerializeToString())
found = session.run(None, {graph.graph.input[0].name: x.numpy()})[0]
ours = norm(x).detach().numpy()
true = norm.double()(x.double()).detach().numpy()
for name, array in (("onnxruntime", found), ("torch", ours)):
    print(name, np.linalg.norm(array - true) / np.linalg.norm(true))
