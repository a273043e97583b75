"""torchao makes NaN of a row of zeros in fp8: BERT's padding row in its tied decoder is one.

The step of the row is 0, and the row is divided by it. torchao 0.18.
"""

import torch
from torch import nn
from torchao.quantization import Float8WeightOnlyConfig, quantize_

if __name__ == "__main__":
    layer = nn.Sequential(nn.Linear(16, 4, bias=False))
    with torch.no_grad():
        layer[0].weight[1] = 0
    quantize_(layer, Float8WeightOnlyConfig())
    print(layer(torch.ones(1, 16)))
