"""MiniLM as a graph in fp16 with blocks left in float32, by ONNX Runtime's own converter.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/islands_table.py
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import onnx

import driftwalk
import graphs
from benchmarks.quantised_matrix import real, used
from driftwalk_backends.loaded import LoadedModel
from driftwalk_backends.probes import make_probe

KEPT: tuple[tuple[int, ...], ...] = ((), (0, 1, 2), (0, 1, 2, 3, 4, 5))


def converted(source: Path, target: Path, kept: tuple[int, ...]) -> Path:
    """In fp16, but for the operations of some blocks."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    whole = onnx.load(str(source))
    words = [f"layer.{number}/" for number in kept]
    blocked = [n.name for n in whole.graph.node if any(word in n.name for word in words)]
    made = convert_float_to_float16(whole, keep_io_types=True, node_block_list=blocked)
    _once(made.graph)
    onnx.save(made, str(target))
    return target


def _once(graph: Any) -> None:
    """Without casts that the converter writes once for each of several takers."""
    kept, seen = [], set()
    for node in graph.node:
        if node.output[0] not in seen:
            kept.append(node)
        seen.add(node.output[0])
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(copies)


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    ((_, model),) = real()
    model.eval()
    probe = make_probe(LoadedModel(model, "MiniLM"), None)
    with tempfile.TemporaryDirectory() as where:
        whole = graphs.export(model, probe, Path(where))
        for number, kept in enumerate(KEPT):
            path = converted(whole, whole.with_name(f"half-{number}.onnx"), kept)
            report = driftwalk.verify(model, f"onnxruntime,file={path}", probe=probe)
            said = report.culprit.sentence if report.culprit else ""
            sys.stdout.write(f"| {kept} | {report.verdict} | {used(report):.2f} | {said} |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
