"""ONNX Runtime adds terms one by one where PyTorch adds in groups: a matrix by a vector, a sum over
an axis that is not the last. With 256 terms of one sign it is about four times as far off (TIPSv2,
CHMv2: depth is a mean of 256 distances). onnxruntime 1.31.1, torch 2.13.0.
"""

import numpy as np
import onnxruntime
import torch


class Mean(torch.nn.Module):
    def forward(
        self, shares: torch.Tensor, channels: torch.Tensor, far: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return shares @ far, (channels * far[:, None, None]).sum(0)


torch.manual_seed(0)
shares, far = torch.softmax(torch.randn(32, 32, 256), -1), torch.linspace(0.001, 10.0, 256)
given = shares, shares.permute(2, 0, 1).contiguous(), far
graph = torch.onnx.export(Mean(), given, dynamo=True, verbose=False).model_proto
session = onnxruntime.InferenceSession(graph.SerializeToString())
feed = {one.name: array.numpy() for one, array in zip(graph.graph.input, given, strict=True)}
true = (shares.double() @ far.double()).numpy()
runs = {"onnxruntime": session.run(None, feed), "torch": [y.numpy() for y in Mean()(*given)]}
for name, made in runs.items():
    off = [np.linalg.norm(y - true) / np.linalg.norm(true) for y in made]
    print(name, "product {:.1e}, sum {:.1e}".format(*off))
