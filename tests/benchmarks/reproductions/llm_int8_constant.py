"""bitsandbytes' LLM.int8 on a CPU multiplies by 6.200124e-05; 1 / 127² is 6.2000124e-05.

Every product is 1.8e-5 too large: less than fp16 shows, 300 roundoffs of float32. 0.50.2.
"""

import importlib

import torch

if __name__ == "__main__":
    importlib.import_module("bitsandbytes")  # has its operations registered
    whole = torch.tensor([[127 * 127]], dtype=torch.int32)
    one = torch.ones(1)
    made = torch.ops.bitsandbytes.int8_mm_dequant(whole, one, one, dtype=torch.float32)
    print(f"127 * 127 / 127²: {float(made):.7f}")
