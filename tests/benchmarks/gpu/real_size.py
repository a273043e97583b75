"""All of `verify` on a Llama of 1.1 or 7.2 B parameters on a GPU: seconds and memory, in Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/gpu/real_size.py 1b|7b [folder]

`torch:cuda:fp32` against `torch:cuda:bf16`, 512 tokens, default policy, random float32 weights in
memory; with a folder, from safetensors in bfloat16 that are written there. For 1b also what the
witness on the CPU says, and how far the two are apart.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import re
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
import transformers as tf

import driftwalk

SIZES = {
    "1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22},
    "7b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
}
TOKENS, VOCABULARY = 512, 32000


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def llama(size: str) -> Any:
    config = tf.LlamaConfig(
        **SIZES[size], num_attention_heads=32, num_key_value_heads=8, vocab_size=VOCABULARY
    )
    with torch.device("meta"):
        model = tf.LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        made = torch.randn(weight.shape, device="cuda") * 0.02
        weight.data.copy_(torch.ones_like(made) if "norm" in name else made)
    rotary = tf.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    model.model.rotary_emb = rotary
    torch.cuda.empty_cache()
    return model


class Memory:
    """The most that a process has of its own on the host, and of the GPU, while this is open."""

    def __enter__(self) -> Memory:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self.host, self._done = 0.0, Event()
        self._watch = Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def _look(self) -> None:
        while not self._done.wait(0.02):
            status = Path("/proc/self/status").read_text()
            kib = re.search(r"RssAnon:\s+(\d+)", status)
            self.host = max(self.host, int(kib[1]) / 2**20 if kib else 0.0)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.device = torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", nargs="?", help="where to write safetensors, and read them from")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    size, folder = options.size, options.folder
    model: Any = llama(size)
    weights = sum(p.nbytes for p in model.parameters()) / 2**30
    say(f"{weights:.1f} GiB of weights; torch {torch.__version__}")
    ids = torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    probe = {"input_ids": ids.numpy()}
    if folder:
        model.bfloat16().save_pretrained(folder)
        model = folder  # and nothing of what was made is left in memory
    say("| run | witness | seconds | loading | host GiB | GPU GiB | verdict | most used |")
    say("|---|---|---:|---:|---:|---:|---|---|")
    reports = {}
    witnesses = ("cuda", "cuda", "cpu") if size == "1b" else ("cuda", "cuda")
    for number, witness in enumerate(witnesses):
        profile, start = cProfile.Profile(), time.perf_counter()
        with Memory() as memory:
            if options.profile:
                profile.enable()
            report = driftwalk.verify(
                model, "torch:cuda:bf16", reference="torch:cuda:fp32", probe=probe, witness=witness
            )
            profile.disable()
        seconds = time.perf_counter() - start
        loading = sum(report.timings[side].get("load", 0.0) for side in ("reference", "candidate"))
        most = max((x.tolerance.needed, x.point.name) for x in report.layers if x.tolerance)
        name = "cold" if witness == "cpu" or not number else "warm"
        say(
            f"| {name} | {witness} | {seconds:.1f} | {loading:.1f} | {memory.host:.1f} "
            f"| {memory.device:.1f} | {report.verdict} | {most[0]:.2f} ({most[1]}) |",
        )
        say(report.timings, [note[:160] for note in report.notes])
        if options.profile:
            for key in ("cumulative", "tottime"):
                pstats.Stats(profile).sort_stats(key).print_stats(
                    r"driftwalk|numpy|method|built", 45
                )
        reports[witness] = report
    if "cpu" in reports:
        apart = {
            side: max(
                abs(getattr(a.truth, side) / getattr(b.truth, side) - 1)
                for a, b in zip(reports["cuda"].layers, reports["cpu"].layers, strict=True)
                if a.truth and b.truth and getattr(b.truth, side)
            )
            for side in ("reference", "candidate", "yardstick")
        }
        say("how far the numbers of the two witnesses are apart, at most:", apart)


if __name__ == "__main__":
    main()
