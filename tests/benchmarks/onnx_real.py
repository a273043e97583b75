"""Graphs from elsewhere against themselves, and with seeded faults: false alarms and misses.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/onnx_real.py FAULTS FILE.onnx ...

Each file is run as written and at other levels of optimisation, by blocks and node by node; then
FAULTS times with one stored tensor changed, where that moves an output by more than 1e-5 (relative
L2): one weight, a row of zeros, all of it by 1 %, noise of 1e-3; steps by 5 %, zero points by one.
A fault counts as placed if the node that is named takes the changed tensor, or is a few nodes on
(what was fused, or folded into weights).
Beside FILE.onnx, FILE.safetensors holds the inputs where the made-up ones will not do.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

import driftwalk
from driftwalk_backends.onnx.pairs.probe import graph_probe
from driftwalk_backends.onnx.reading import read_graph
from driftwalk_backends.sources import open_model

CANDIDATES = [
    *("onnxruntime", "onnxruntime,opt=basic", "onnxruntime,opt=extended"),
    "onnxruntime,opt=off,threads=2",
]
SHOWS, MOST_TRIED, NODES_ON = 1e-5, 150, 8


def given(file: Path) -> Path | None:
    beside = file.with_suffix(".safetensors")
    return beside if beside.is_file() else None


def clean(file: Path) -> tuple[int, int, float]:
    """Runs, those that did not pass, and the seconds that took."""
    start, runs, wrong = time.perf_counter(), 0, 0
    for depth in ("block", "op"):
        for seed in (0, 1):
            reports = driftwalk.verify_all(
                str(file), CANDIDATES, None, given(file), depth=depth, seed=seed
            )
            runs += len(reports)
            wrong += sum(report.verdict != "pass" for report in reports)
    return runs, wrong, time.perf_counter() - start


def stored(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            values = [a.t for a in node.attribute if a.name == "value"]
            found |= dict.fromkeys(node.output[:1], *values) if values else {}
    return {n: t for n, t in found.items() if t.data_type in (1, 2, 3, 10) and 0 not in t.dims}


def changed(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    kind, made = rng.integers(4), array.copy()
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        more = array.astype(int) + 1 if array.size == 1 else array.astype(int) * 21 // 20
        if array.size > 1 and kind < 2:
            more = array.astype(int)
            more.reshape(-1)[rng.integers(array.size)] += 16
        return np.clip(more, limits.min, limits.max).astype(array.dtype)
    if array.size == 1:
        made = made * 1.05
    elif kind == 0:
        made.reshape(-1)[rng.integers(array.size)] += np.abs(array).max()
    elif kind == 1:
        made = made * 1.01
    elif kind == 2:
        made[rng.integers(array.shape[0])] = 0
    else:
        made = made * (1 + 1e-3 * rng.standard_normal(array.shape))
    return np.asarray(made).astype(array.dtype)


def outputs(model: bytes, feed: dict[str, Any]) -> list[np.ndarray] | None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return [np.asarray(item, np.float64) for item in session.run(None, feed)]
    except Exception:  # whatever the runtime makes of a graph that was spoilt
        return None


def moves(a: list[np.ndarray], b: list[np.ndarray] | None) -> bool:
    if b is None or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return False
    sides = zip(a, b, strict=True)
    return any(np.linalg.norm(y - x) > SHOWS * max(np.linalg.norm(x), 1e-30) for x, y in sides)


def faults(file: Path, feed: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Stored tensors, each with a graph in which it is another, as far as that shows."""
    model, rng = onnx.load(str(file)), np.random.default_rng(7)
    good, names = outputs(file.read_bytes(), feed), list(stored(model))
    assert good is not None
    for _ in range(MOST_TRIED):
        bad = onnx.ModelProto()
        bad.CopyFrom(model)
        name = names[rng.integers(len(names))]
        tensor = stored(bad)[name]
        array = changed(numpy_helper.to_array(tensor), rng)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        data = bad.SerializeToString()
        if moves(good, outputs(data, feed)):
            yield name, data


def is_placed(file: Path, tensor: str, report: driftwalk.Report) -> bool:
    graph = read_graph(file)
    named = report.culprit.sentence.rpartition("\u2192 ")[2] if report.culprit else ""
    front = {n for number in graph.consumers.get(tensor, ()) for n in graph.nodes[number].outputs}
    for _ in range(NODES_ON):
        if any(named.startswith(repr(name)) for name in front):
            return True
        taken = {number for name in front for number in graph.consumers.get(name, ())}
        front = {name for number in taken for name in graph.nodes[number].outputs if name}
    return False


def main() -> int:
    warnings.simplefilter("ignore")
    most, out, alarms = int(sys.argv[1]), sys.stdout.write, 0
    for file in map(Path, sys.argv[2:]):
        runs, wrong, seconds = clean(file)
        alarms += wrong
        out(f"{file.name}: {wrong} of {runs} clean runs did not pass ({seconds:.0f} s)\n")
        probe = graph_probe(open_model(str(file)), given(file), batch=2, length=16, seed=0)
        shown = caught = placed = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bad.onnx"
            for name, data in faults(file, dict(probe.inputs)):
                if shown == most:
                    break
                shown += 1
                path.write_bytes(data)
                spec = f"onnxruntime,file={path},opt={'off' if shown % 2 else 'all'}"
                report = driftwalk.verify(str(file), spec, None, dict(probe.inputs), depth="op")
                caught += report.verdict == "drift"
                placed += is_placed(file, name, report)
                if report.verdict != "drift":
                    out(f"    missed: {name}\n")
        out(f"    {shown} faults, {caught} caught, {placed} placed\n")
        sys.stdout.flush()
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
