"""What `verify` costs over the two bare forward passes: policy dtype, everything loaded already.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/verify_cost.py

GPT-2-small shape with random weights, probe 2 x 128, torch against onnxruntime. Bare runs and
verify take turns; both are taken by wall clock and by the processor's, which neighbours on a shared
machine disturb less.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers as tf

import driftwalk
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

ROUNDS = 7


def gpt2(layers: int = 12, width: int = 768, vocabulary: int = 50257):
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64, vocab_size=vocabulary)
    return tf.GPT2LMHeadModel(config).eval()


def timed(run: Callable[[], object]) -> tuple[float, float]:
    wall, busy = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - busy


def main() -> None:
    model = open_model(gpt2())
    probe = make_probe(model, None, batch=2, length=128)
    reference = driftwalk.backend("torch", model)
    # Of a large graph a backend keeps one session at a time: bare runs have a backend of their own.
    candidate, plain = (driftwalk.backend("onnxruntime", model) for _ in range(2))

    def verify() -> None:
        report = driftwalk.verify(
            model, candidate=candidate, reference=reference, probe=probe, policy="dtype"
        )
        assert report.ok, report.reason

    turns: dict[str, Callable[[], object]] = {
        "torch, bare": lambda: reference.run(probe),
        "onnxruntime, bare": lambda: plain.run(probe),
        "verify": verify,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in turns}
    for number in range(ROUNDS + 1):
        for name, run in turns.items():
            seconds = timed(run)
            if number:  # the first exports, loads and runs the observer check
                found[name].append(seconds)
    write = sys.stdout.write
    write("| | wall, ms | processor, ms |\n| --- | ---: | ---: |\n")
    for name, laps in found.items():
        wall, busy = (statistics.median(lap[n] for lap in laps) for n in (0, 1))
        write(f"| {name} | {wall * 1e3:.0f} | {busy * 1e3:.0f} |\n")
    for n, clock in enumerate(("wall clock", "processor time")):
        ratios = [
            whole[n] / (one[n] + other[n])
            for one, other, whole in zip(*found.values(), strict=True)
        ]
        write(f"\nverify / (torch + onnxruntime) by {clock}: {statistics.median(ratios):.3f} ")
        write(f"(from {min(ratios):.3f} to {max(ratios):.3f})\n")


if __name__ == "__main__":
    main()
