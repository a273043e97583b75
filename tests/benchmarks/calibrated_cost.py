"""What the calibrated policy costs over `dtype`, with a warm cache: ratios of one run, interleaved.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/calibrated_cost.py
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import transformers as tf

import driftwalk

ROUNDS = 7


def model(layers: int, width: int):
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64, vocab_size=8192)
    return tf.GPT2LMHeadModel(config).eval()


def main() -> None:
    for layers, width, batch, length in ((6, 256, 2, 64), (12, 768, 2, 128)):
        module = model(layers, width)
        for candidate in ("onnxruntime", "torch:cpu:fp32,attn=eager"):
            seconds: dict[str, list[float]] = {"dtype": [], "calibrated": []}
            cold = None
            for number in range(ROUNDS + 1):
                for policy, found in seconds.items():
                    start = time.perf_counter()
                    report = driftwalk.verify(
                        module, candidate=candidate, policy=policy, batch=batch, length=length
                    )
                    assert report.ok
                    if number:  # the first round exports and calibrates
                        found.append(time.perf_counter() - start)
                    elif policy == "calibrated":
                        cold = [note for note in report.notes if "computed" in note]
            ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
            sys.stdout.write(
                f"GPT-2 {layers} x {width}, probe {batch} x {length}, {candidate}: calibrated / "
                f"dtype = {statistics.median(ratios):.2f} (from {min(ratios):.2f} to "
                f"{max(ratios):.2f}); dtype {statistics.median(seconds['dtype']):.2f} s; "
                f"cold: {cold}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
