"""FNet: ONNX Runtime's DFT on the CPU loses two digits of float32. Needs no driftwalk.

Where the axis is no power of two it is 100 times as far from the exact result as PyTorch's or as
ONNX's own reference; at a power of two, 4 times. The graph is right: the runtime's kernel it is.
"""

import sys

import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator


class Fourier(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x, dim=2).real


for length in (32, 96):
    torch.manual_seed(0)
    x, module = torch.randn(2, 16, length), Fourier()
    program = torch.onnx.export(module, (x,), input_names=["x"], dynamo=True, verbose=False)
    assert program is not None
    graph, feed = program.model_proto, {"x": x.numpy()}
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    results = {
        "torch": module(x),
        "onnxruntime": session.run(None, feed)[0],
        "onnx.reference": ReferenceEvaluator(graph).run(None, feed)[0],
    }
    exact = module(x.double())
    for name, result in results.items():
        error = (torch.as_tensor(result).double() - exact).norm() / exact.norm()
        sys.stdout.write(f"{length} {name}: {error:.1e}\n")
