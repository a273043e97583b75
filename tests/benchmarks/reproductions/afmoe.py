"""AFMoE, freshly made: torch and ONNX Runtime send each token to other experts. Needs no driftwalk.

Its routers begin as zeros, so that all experts have the same score, and which of equal numbers
`torch.topk` takes is nowhere laid down: the last two of four here. ONNX's TopK takes the first.
Both are right: no bug of an exporter or a runtime. A router with any weight but zero agrees.
"""

import sys

import onnxruntime
import torch


class Router(torch.nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.sigmoid(logits), k=2, dim=1).indices


logits = torch.zeros(1, 4)  # AfmoeTokenChoiceRouter.gate.weight is initialised with zeros
program = torch.onnx.export(Router(), (logits,), input_names=["logits"], dynamo=True, verbose=False)
assert program is not None
session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
by_ort = session.run(None, {"logits": logits.numpy()})[0]
sys.stdout.write(f"torch {Router()(logits).tolist()}, onnxruntime {by_ort.tolist()}\n")
