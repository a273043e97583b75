"""Decoding on a GPU against the CPU: verdicts, where the two part, and seconds, in Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/gpu/generation.py [compiled]

A Llama of 135 M parameters with random weights, and the tiny models of tests/decoders.py; batches
of two rows, and of three rows that are padded. `compiled` decodes with torch.compile on static
caches, which takes longer: some of the models.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
import transformers as tf

import decoders
import driftwalk

CANDIDATES = (
    ("torch:cuda:fp32", "dynamic"),
    ("torch:cuda:bf16", "dynamic"),
    ("torch:cuda:bf16,attn=sdpa", "dynamic"),
    ("torch:cuda:bf16", "static"),
    ("torch:cuda:fp16", "dynamic"),
)
COMPILED = (
    ("torch:cuda:bf16,compile=inductor", "static"),
    ("torch:cuda:fp32,compile=inductor", "static"),
)


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def smol() -> Any:
    """The shape of SmolLM2-135M."""
    config = tf.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
    )
    torch.manual_seed(0)
    return tf.LlamaForCausalLM(config).eval()


def table(
    name: str,
    model: Any,
    prompt: dict[str, Any],
    steps: int,
    candidates: tuple[tuple[str, str], ...] = CANDIDATES,
) -> None:
    for candidate, cache in candidates:
        start = time.perf_counter()
        try:
            made = driftwalk.generate(
                model,
                candidate=candidate,
                reference="torch:cpu:fp32",
                prompt=prompt,
                steps=steps,
                cache=cache,
                witness="cpu",
            )
        except driftwalk.DriftwalkError as error:
            say(f"| {name} | `{candidate}` | {cache} | {error} | | | | |")
            continue
        seconds = time.perf_counter() - start
        used, point = max((r.tolerance.needed, r.point.name) for r in made.layers if r.tolerance)
        parted = "never"
        if made.parted is not None:
            parted = f"step {made.parted.step}, {'a tie' if made.parted.tie else 'no tie'}"
        path = made.cache_paths["candidate"]
        say(
            f"| {name} | `{candidate}` | {cache} | {made.verdict} | {used:.0%} at {point} "
            f"| {path.agreement} | {parted} | {seconds:.1f} |"
        )


def main() -> None:
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers {tf.__version__}")
    say("| model | candidate | cache | verdict | most used | its cache | parted | s |")
    say("|---|---|---|---|---:|---|---|---:|")
    ids = np.random.default_rng(0).integers(4, 49152, (2, 24))
    if sys.argv[1:] == ["compiled"]:
        for name in ("llama", "gpt2", "gemma3"):
            table(f"{name}, padded", decoders.build(name), decoders.padded(name), 24, COMPILED)
        table("Llama, 135 M", smol(), {"input_ids": ids}, 64, COMPILED)
        for name in ("mistral", "qwen3", "t5", "whisper", "mamba"):
            table(name, decoders.build(name), decoders.prompt(name), 24, COMPILED)
        return
    table("Llama, 135 M", smol(), {"input_ids": ids}, 64)
    for name in decoders.MAKERS:
        table(name, decoders.build(name), decoders.prompt(name), 24)
    for name in ("gpt2", *decoders.ROTARY):
        table(f"{name}, padded", decoders.build(name), decoders.padded(name), 24)


if __name__ == "__main__":
    main()
