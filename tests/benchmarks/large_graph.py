"""Graphs of more than 2 GB, which protobuf cannot hold in one piece: do all ways still work?

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/large_graph.py [LAYERS]

A Llama shape, 2048 wide, 12 layers, 3 GB of float32 weights: driftwalk's own export, the same graph
as a file that others made, and the file alone against itself, optimised. Prints Markdown.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers as tf

import driftwalk
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from graphs import export


def llama(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    size = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
    config = tf.LlamaConfig(num_hidden_layers=layers, vocab_size=32000, **size)
    return tf.LlamaForCausalLM(config).eval()


def main(layers: int) -> None:
    out = sys.stdout.write
    module = llama(layers)
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    model = open_model(module)
    probe = make_probe(model, None, batch=1, length=16)
    out(f"{layers} layers, {weights / 1e9:.2f} GB of weights, torch {torch.__version__}\n\n")
    out("| candidate | verdict | points | most of the allowance | s | peak, GB |\n")
    out("|---|---|--:|--:|--:|--:|\n")
    with tempfile.TemporaryDirectory() as folder:
        path = export(module, probe, Path(folder), dynamo=True)
        ways: dict[str, Callable[[], driftwalk.Report]] = {
            "onnxruntime": lambda: driftwalk.verify(model, "onnxruntime,cache=off", probe=probe),
            "onnxruntime,file=": lambda: driftwalk.verify(
                model, f"onnxruntime,file={path}", probe=probe
            ),
            "two graphs": lambda: driftwalk.verify(str(path), "onnxruntime", probe=probe),
        }
        for name, verify in ways.items():
            start = time.perf_counter()
            report = verify()
            took = time.perf_counter() - start
            needed = [row.tolerance.needed for row in report.layers if row.tolerance]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            covered = f"{report.coverage.compared} of {report.coverage.points}"
            out(f"| `{name}` | {report.verdict} | {covered} | {max(needed):.2f} ")
            out(f"| {took:.0f} | {peak:.1f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
