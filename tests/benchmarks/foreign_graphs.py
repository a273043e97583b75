"""ONNX files that others made, as they lie in a folder: fed, against themselves, and spoilt.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/foreign_graphs.py FOLDER [FAULTS]

Every .onnx file below FOLDER is one row of a table, named after the folder it lies in (its
package): the inputs that were made up for it; verdicts at three levels of optimisation, and with
two threads, against the graph as written; and FAULTS (4) times one stored tensor changed, in four
sizes: noise of 1e-1, 1e-2 and 1e-3 of each element, and one element of the size of the largest.
Only faults that move an output by more than 1e-5 (relative L2) count. One is placed if the node
that is named takes the changed tensor, or is a few nodes on (what was fused into one).
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx_real import MOST_TRIED, is_placed, moves, outputs

import driftwalk
from driftwalk.errors import DriftwalkError
from driftwalk_backends.onnx.graph import branches
from driftwalk_backends.onnx.pairs.defaults import every_node
from driftwalk_backends.onnx.pairs.probe import graph_probe
from driftwalk_backends.sources import open_model

CANDIDATES = [
    *("onnxruntime", "onnxruntime,opt=basic", "onnxruntime,opt=extended"),
    "onnxruntime,opt=off,threads=2",
]
SIZES = (1e-1, 1e-2, 1e-3, 0.0)
HEAD = "| graph | nodes | format | fed with | clean runs | most used | faults | placed | s |"


def stored(model: onnx.ModelProto) -> list[tuple[str, str, onnx.TensorProto]]:
    """Every stored tensor of floats or steps: its name, the node around it (if any), and itself."""
    found = [(t.name, "", t) for t in model.graph.initializer]
    for node in model.graph.node:
        inside = [inner for graph in branches(node) for inner in every_node(graph)]
        for graph in branches(node):
            found += [(t.name, node.output[0], t) for t in graph.initializer]
        for inner in (node, *inside):
            around = "" if inner is node else node.output[0]
            if inner.op_type == "Constant":
                values = [a.t for a in inner.attribute if a.name == "value"]
                found += [(inner.output[0], around, tensor) for tensor in values]
    kinds = (1, 2, 3, 10)
    return [(n, a, t) for n, a, t in found if t.data_type in kinds and 0 not in t.dims]


def spoilt(array: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    wide = array.astype(np.float64)
    if size:
        wide = wide * (1 + size * rng.standard_normal(array.shape))
    else:
        wide.reshape(-1)[rng.integers(array.size)] += max(np.abs(wide).max(), 1e-3)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        wide = np.clip(np.round(wide), limits.min, limits.max)
    return wide.astype(array.dtype)


def faults(file: Path, feed: dict[str, Any]) -> Iterator[tuple[str, str, bytes]]:
    data, rng = file.read_bytes(), np.random.default_rng(7)
    good, count = outputs(data, feed), len(stored(onnx.load_from_string(data)))
    shown = 0
    for _ in range(MOST_TRIED if good is not None and count else 0):
        bad = onnx.load_from_string(data)
        name, around, tensor = stored(bad)[rng.integers(count)]
        array = spoilt(numpy_helper.to_array(tensor), SIZES[shown % len(SIZES)], rng)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        made = bad.SerializeToString()
        if good is not None and moves(good, outputs(made, feed)):
            shown += 1
            yield name, around, made


def spoiled(file: Path, feed: dict[str, Any], most: int) -> tuple[int, int, int, list[str]]:
    """Faults that show, those caught, those placed, and what was missed or misplaced."""
    shown = caught = placed = 0
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bad.onnx"
        for name, around, data in faults(file, feed):
            if shown == most:
                break
            shown += 1
            path.write_bytes(data)
            spec = f"onnxruntime,file={path},opt={'off' if shown % 2 else 'all'}"
            report = driftwalk.verify(str(file), spec, None, feed, depth="op")
            caught += report.verdict == "drift"
            named = report.culprit.sentence if report.culprit else ""
            there = f"{around!r}" in named if around else is_placed(file, name, report)
            placed += there
            if report.verdict != "drift" or not there:
                missed.append(f"{report.verdict}: {name[:60]} ({(around or named)[:80]})")
    return shown, caught, placed, missed


def row(file: Path, folder: Path, most: int) -> tuple[str, bool]:
    """One line of the table, and whether all was as it should be."""
    start, where = time.perf_counter(), file.relative_to(folder)
    label = f"`{where.parent.name}` {file.stem}"
    try:
        model = open_model(str(file))
        probe = graph_probe(model, None, batch=2, length=16, seed=0)
        reports = driftwalk.verify_all(str(file), CANDIDATES, None, dict(probe.inputs))
    except DriftwalkError as error:
        return f"| {label} | | | not fed: {str(error)[:120]} | | | | | |", False
    clean = sum(report.verdict == "pass" for report in reports)
    used = max(
        (r.tolerance.needed for report in reports for r in report.layers if r.tolerance),
        default=0.0,
    )
    graph = model.graph
    kind = f"{graph.dtype}, int8" if graph.quantised else graph.dtype
    shapes = " ".join(f"{list(a.shape)}".replace(" ", "") for a in probe.inputs.values())
    shown, caught, placed, missed = spoiled(file, dict(probe.inputs), most)
    for line in missed:
        sys.stderr.write(f"    {label}: {line}\n")
    seconds = time.perf_counter() - start
    words = (
        f"| {label} | {len(graph.nodes)} | {kind} | {shapes[:60]} | {clean} of {len(reports)} "
        f"| {used:.2f} | {caught} of {shown} | {placed} | {seconds:.0f} |"
    )
    return words, clean == len(reports) and caught == shown


def main() -> int:
    warnings.simplefilter("ignore")
    folder, most = Path(sys.argv[1]), int((*sys.argv[2:3], "4")[0])
    sys.stdout.write(f"onnxruntime {version('onnxruntime')}, onnx {version('onnx')}\n\n{HEAD}\n")
    sys.stdout.write("|---|--:|---|---|--:|--:|--:|--:|--:|\n")
    fine = True
    for file in sorted(folder.rglob("*.onnx")):
        words, ok = row(file, folder, most)
        fine = fine and ok
        sys.stdout.write(f"{words}\n")
        sys.stdout.flush()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
