"""The cost of the full map of a 12-layer, 64-token, 256-wide decoder, for docs/visibility.md.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/cone_map.py
"""

from __future__ import annotations

import os
import resource
import sys
import time

import numpy as np
import torch
import transformers as tf
from torch import nn

from driftwalk.tasks.studies.visibility import visibility


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def decoder(width: int) -> nn.Module:
    torch.manual_seed(0)
    config = tf.GPT2Config(n_embd=width, n_layer=12, n_head=4, vocab_size=500, n_positions=64)
    config.bos_token_id = config.eos_token_id = 1
    return tf.GPT2LMHeadModel(config).eval()


def ids(length: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.random.default_rng(0).integers(0, 500, (1, length))


def cost() -> None:
    model = decoder(256)
    write("| directions | wall, s | processor, s | load | typical error told | peak memory |")
    write("|---|---|---|---|---|---|")
    for directions in (1, 2, 4):
        wall, processor = time.perf_counter(), time.process_time()
        found = visibility(model, ids(64), directions=directions)
        spent = time.perf_counter() - wall, time.process_time() - processor
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        error = "not known" if found.error is None else f"{100 * found.error:.1f} %"
        write(
            f"| {directions} | {spent[0]:.1f} | {spent[1]:.1f} | {os.getloadavg()[0]:.1f} | "
            f"{error} | {peak:.1f} GB |"
        )


def accuracy() -> None:
    """Against all directions, on a smaller model of the same kind."""
    model = decoder(64)
    exact = visibility(model, ids(16), directions=0).influence
    there = exact > 0
    write("\n| directions of 64 | error told | median error | 99 % are within |")
    write("|---|---|---|---|")
    for directions in (2, 4, 8, 16):
        found = visibility(model, ids(16), directions=directions)
        off = np.abs(found.influence[there] / exact[there] - 1)
        told = f"{100 * (found.error or 0):.1f} %"
        write(
            f"| {directions} | {told} | {100 * np.median(off):.1f} % | "
            f"{100 * np.quantile(off, 0.99):.0f} % |"
        )


if __name__ == "__main__":
    torch.set_num_threads(2)
    cost()
    accuracy()
