"""Measures the CUDA adapter against CPU fp32 and prints docs/cuda.md; needs a GPU.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/cuda_table.py > docs/cuda.md
"""

from __future__ import annotations

import datetime
import platform
import sys

import torch
import transformers as tf
from torch import nn

import driftwalk

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 768, 12, 32000
CANDIDATES = ("fp32", "fp32,tf32=on", "fp16", "bf16")


def models() -> dict[str, nn.Module]:
    common = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 512,
    }
    grouped = common | {"num_key_value_heads": 4}
    makers = {
        "GPT-2": lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, vocab_size=VOCABULARY)
        ),
        "Llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**grouped)),
        "Qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**grouped, head_dim=64)),
        "BERT": lambda: tf.BertForMaskedLM(tf.BertConfig(**common)),
        "T5": lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(
                d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS,
                vocab_size=VOCABULARY, decoder_start_token_id=0,
            )
        ),
    }  # fmt: skip
    built = {}
    for name, make in makers.items():
        torch.manual_seed(0)
        built[name] = make().eval()
    return built


def main() -> None:
    out = sys.stdout.write
    out("# The CUDA adapter, measured\n\n")
    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}, transformers {tf.__version__}, Python "
        f"{platform.python_version()}.\n\n"
        f"Seeded random models, {LAYERS} layers, {WIDTH} wide; reference `torch:cpu:fp32`, default "
        "probe with `--batch 4 --length 128` (every second row padded by a quarter), policy "
        "`calibrated`. *used* is the largest share of its allowance that any point used; above "
        "100 % is drift. Made by `tests/benchmarks/cuda_table.py`.\n\n"
        "| model | candidate | verdict | rel L2, first layer | rel L2, last layer | rel L2, logits "
        "| used, worst point | argmax flips (ties) | bit-identical plain run |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, model in models().items():
        for dtype in CANDIDATES:
            spec = f"torch:cuda:{dtype}"
            report = driftwalk.verify(model, candidate=spec, batch=4, length=128)
            rows = [row for row in report.layers if row.metrics and row.tolerance]
            blocks = [row for row in rows if ".layer." in f".{row.point.name}"]
            worst = max(rows, key=lambda row: row.tolerance.needed)
            said = report.outputs
            out(
                f"| {name} | `{spec}` | {report.verdict} | {blocks[0].metrics.rel_l2:.2e} | "
                f"{blocks[-1].metrics.rel_l2:.2e} | {rows[-1].metrics.rel_l2:.2e} | "
                f"{worst.tolerance.needed:.0%} ({worst.point.name}) | {said.flips} ({said.ties}) "
                f"of {said.positions} | {report.observer['candidate'].bit_identical} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
