"""Invariance of GPT-2 and BERT on the CPU, for docs/hwcheck.md; seeded weights, no download.

    python tests/benchmarks/invariance_table.py [small]

Float32 in the real shapes (12 layers, 768 wide). Half precision in 4 layers, 128 wide: a CPU
without units for it takes hundreds of times as long. Prints Markdown.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import torch
import transformers as tf
from torch import nn

import driftwalk
from driftwalk.tasks.hardware.invariance import matrix
from driftwalk.tasks.hardware.result import Cell
from driftwalk_backends.sources import open_model
from driftwalk_reports.hardware import invariance_table, to_matrix

FULL, SMALL = (12, 768, 12), (4, 128, 4)
VOCABULARY = 5000
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def gpt2(layers: int, width: int, heads: int) -> nn.Module:
    config = tf.GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=VOCABULARY,
        initializer_range=spread(width),
        **SPECIAL,
    )
    return seeded(tf.GPT2LMHeadModel, config)


def bert(layers: int, width: int, heads: int) -> nn.Module:
    config = tf.BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=VOCABULARY,
        initializer_range=spread(width),
        **SPECIAL,
    )
    return seeded(tf.BertForMaskedLM, config)


def spread(width: int) -> float:
    """What GPT-2 and BERT have at 768; a narrower model with the same would hardly attend."""
    return float(0.02 * (768 / width) ** 0.5)


def seeded(kind: type, config: object) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = kind(config)
    return model.eval()


def cells(make: object, dtypes: tuple[str, ...], size: tuple[int, int, int]) -> list[Cell]:
    ids = np.random.default_rng(0).integers(1, VOCABULARY, (1, 24))
    probe = driftwalk.Probe({"input_ids": ids})
    model = open_model(make(*size))  # type: ignore[operator]
    found = matrix(model, "cpu", dtypes, probe, positions=True, threads=os.cpu_count() or 1)
    return list(found)


def main() -> None:
    small = sys.argv[1:] == ["small"]
    for name, make in (("GPT-2", gpt2), ("BERT", bert)):
        found = cells(make, ("fp32",), SMALL if small else FULL)
        found += cells(make, ("bf16", "fp16"), SMALL)
        shape = "4 x 128" if small else "12 x 768"
        sys.stdout.write(f"\n#### {name}, fp32 {shape}, half precision 4 x 128\n\n")
        sys.stdout.write(invariance_table(to_matrix(tuple(found))) + "\n")


if __name__ == "__main__":
    main()
