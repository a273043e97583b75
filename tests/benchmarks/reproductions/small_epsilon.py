"""`torch.onnx.export` loses an epsilon of 1e-8: onnxscript takes it for the 0 of `x + 0`.

Its patterns match constants with `abs_tol=1e-8`, so that the rule for adding zero takes RMSNorm's
epsilon away (Helium, Moshi: `rms_norm_eps=1e-8`). What is small is scaled otherwise, and a row of
zeros becomes NaN. onnxscript 0.7.2, torch 2.13.0. Without `optimize` it is all there.
"""

import numpy as np
import onnxruntime
import torch


class Norm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-8)


x = torch.tensor([[1e-4, -1e-4], [0.0, 0.0]])
for optimize in (True, False):
    graph = torch.onnx.export(
        Norm(), (x,), dynamo=True, optimize=optimize, verbose=False
    ).model_proto
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    found = session.run(None, {"x": x.numpy()})[0]
    ops = [node.op_type for node in graph.graph.node]
    print(f"optimize={optimize}: {found.tolist()}, expected {Norm()(x).tolist()}; {ops}")
    assert optimize or np.allclose(found, Norm()(x))
