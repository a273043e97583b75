"""What `verify --budget` expects to take against what it takes, way by way.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/budget.py

GPT-2 shapes in memory, `torch` against `emulated:bf16` and against a copy with one wrong matrix,
each in a process of its own; the peak of its anonymous memory. Writes a table.
"""

from __future__ import annotations

import json
import subprocess
import sys
from threading import Event, Thread
from typing import Any

SHAPES = [(4, 256, 2000, 256), (12, 256, 2000, 256), (4, 512, 2000, 256), (4, 256, 2000, 1024)]
SHAPES += [(4, 256, 50000, 256)]
"""Layers, width, vocabulary and tokens."""
WAYS = {"copied": 0, "lent, spilled, not inside": 5}
"""Of `memory_plan.plans`: the one that takes most, and the one that takes least."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def build(layers: int, width: int, vocabulary: int) -> Any:
    import torch
    import transformers as tf

    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": width // 64, "vocab_size": vocabulary}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def measured(shape: list[int], way: int, wrong: bool) -> dict[str, float]:
    """MiB: what was expected, what was taken, and what the process had before."""
    import numpy as np
    import torch

    import driftwalk
    from driftwalk import memory_plan
    from driftwalk.budget import anonymous_memory

    layers, width, vocabulary, tokens = shape
    model, candidate = build(layers, width, vocabulary), "emulated:bf16"
    if wrong:
        candidate = build(layers, width, vocabulary)
        with torch.no_grad():
            candidate.transformer.h[-1].mlp.c_proj.weight *= 1.05
    chosen, most, done = [], [0], Event()

    def choose(ways: Any, *_: Any) -> Any:
        chosen.append(ways[way])
        return ways[way]

    def look() -> None:
        while not done.wait(0.003):
            most[0] = max(most[0], anonymous_memory())

    memory_plan.choose = choose
    Thread(target=look, daemon=True).start()
    probe = {"input_ids": np.arange(tokens)[None] * 7 % vocabulary}
    report = driftwalk.verify(model, candidate, probe=probe, cache=False, budget="999GiB")
    done.set()
    assert report.verdict == ("drift" if wrong else "pass"), report.verdict
    now = next(iter(chosen[0].parts.values()))
    return {"expected": chosen[0].total / 2**20, "taken": most[0] / 2**20, "now": now / 2**20}


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        say(json.dumps(measured(*json.loads(sys.argv[2]))))
        sys.exit()
    say("| layers, width, vocabulary, tokens | way | verdict | before | taken | expected | times |")
    say("|---|---|---|---:|---:|---:|---:|")
    for shape in SHAPES:
        for name, way in WAYS.items():
            for wrong in (False, True):
                words = [sys.executable, __file__, "one", json.dumps([shape, way, wrong])]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
                sizes = " | ".join(f"{row[key]:.0f}" for key in ("now", "taken", "expected"))
                times = row["expected"] / row["taken"]
                verdict = "drift" if wrong else "pass"
                say(
                    f"| {', '.join(map(str, shape))} | {name} | {verdict} | {sizes} | {times:.2f} |"
                )
