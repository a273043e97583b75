"""What `--depth op` costs, in units of one plain session and one plain run.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/node_depth.py [TOKENS] [ROUNDS]

A 12-layer, 768-wide GPT-2 with random weights and a vocabulary of 1000, exported by torch.onnx with
its weights beside it. In each round, one after the other: a plain session and one run; the walk
(a session as written, an optimised one, all their tensors compared); the whole of `verify`, which
adds the candidate's plain run for the observer check. One thread each; medians of the ratios.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import onnx
import onnxruntime as ort
import torch
import transformers as tf

import driftwalk
from driftwalk.graphs.verify import TwoGraphs
from driftwalk.spec import Spec
from driftwalk.tolerance import make_policy
from driftwalk_backends.onnx.pairs.model import OnnxModel
from driftwalk_backends.onnx.pairs.runtime import GraphRuntime
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model
from graphs import export

ONE = {"threads": "1"}


def gpt2() -> torch.nn.Module:
    torch.manual_seed(0)
    size = {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 1000, "n_positions": 512}
    return tf.GPT2LMHeadModel(tf.GPT2Config(**size, bos_token_id=1, eos_token_id=2)).eval()


def plain(path: Path, feed: dict) -> tuple[float, float]:
    """Seconds for a plain session, and for one run of it."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    start = time.perf_counter()
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    made = time.perf_counter()
    session.run(None, feed)
    return made - start, time.perf_counter() - made


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    tokens, rounds = (int(word) for word in (*sys.argv[1:3], "64", "5")[:2])
    out = sys.stdout.write
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        module = gpt2()
        probe = make_probe(open_model(module), None, batch=2, length=tokens)
        path = export(module, probe, Path(folder), dynamo=True)
        onnx.save(onnx.load(str(path)), str(path), save_as_external_data=True, location="w.bin")
        del module
        model = OnnxModel(path)
        given = make_probe(model, dict(probe.inputs))
        feed = dict(given.inputs)
        plain(path, feed)
        before, ratios, wholes = peak_mb(), [], []
        for number in range(rounds):
            made, run = plain(path, feed)
            start = time.perf_counter()
            as_written = Spec("onnxruntime", "cpu", "", {"opt": "off"} | ONE)
            with (
                GraphRuntime(as_written, model) as first,
                GraphRuntime(Spec("onnxruntime", "cpu", "", ONE), model) as other,
            ):
                walked = TwoGraphs(first, other, given, make_policy("dtype")).walk("op")
            took = time.perf_counter() - start
            start = time.perf_counter()
            report = driftwalk.verify(
                model, "onnxruntime,threads=1", "onnxruntime,opt=off,threads=1", given, depth="op"
            )
            whole = time.perf_counter() - start
            ratios.append(took / (made + run))
            wholes.append(whole / (made + run))
            out(
                f"round {number}: plain session {made:.2f} s, run {run:.2f} s; walk {took:.2f} s "
                f"({ratios[-1]:.2f}x), verify {whole:.2f} s ({wholes[-1]:.2f}x), {report.verdict}\n"
            )
        for note in walked.notes:
            out(f"{note}\n")
        bad = [row.point.name for row in walked.rows if not row.ok]
        out(f"{len(walked.rows)} rows, not ok: {bad}\n")
        out(f"peak of the process: {before:.0f} MB before, {peak_mb():.0f} MB after\n")
        out(
            f"2 x {tokens} tokens, median of {rounds}: walk {statistics.median(ratios):.2f}x, "
            f"verify {statistics.median(wholes):.2f}x of one plain session and run\n"
        )


if __name__ == "__main__":
    main()
