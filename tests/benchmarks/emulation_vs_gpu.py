"""Error measured on a GPU over error emulated on the CPU, layer by layer; prints Markdown.

PYTHONPATH=harness:backends:reports:tests/benchmarks python3 tests/benchmarks/emulation_vs_gpu.py
"""

from __future__ import annotations

import datetime
import platform
import sys

import torch
import transformers
from cuda_table import models

import driftwalk
from driftwalk.measure.norms import distance
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

PAIRS = {
    "fp16": ("torch:cuda:fp16", "emulated:fp16"),
    "bf16": ("torch:cuda:bf16", "emulated:bf16"),
    "tf32": ("torch:cuda:fp32,tf32=on", "emulated:tf32"),
}


def main() -> None:
    out = sys.stdout.write
    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {torch.cuda.get_device_name()}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, Python "
        f"{platform.python_version()}; 12 layers, 768 wide, seeded weights, probe 4 x 128.\n\n"
        "Ratio of L2 errors against the float64 truth, measured / emulated, for every point in "
        "order.\n\n| model | format | lowest | highest | embed | all points after it |\n"
        "|---|---|---|---|---|---|\n"
    )
    for name, module in models().items():
        model = open_model(module)
        probe = make_probe(model, batch=4, length=128)
        truth = driftwalk.backend("truth", model).trace(probe)
        for label, specs in PAIRS.items():
            errors = []
            for spec in specs:
                found = {}
                with driftwalk.backend(spec, model) as backend:
                    for state in backend.trace(probe):
                        point = state.point.name
                        keep = probe.keep(point, state.array.shape)
                        found[point] = distance(state.array, truth[point], keep).l2
                errors.append(found)
            ratios = {p: errors[0][p] / errors[1][p] if errors[1][p] else 1.0 for p in errors[0]}
            after = [r for p, r in ratios.items() if not p.endswith("embed")]
            embeds = ", ".join(f"{r:.3f}" for p, r in ratios.items() if p.endswith("embed"))
            out(
                f"| {name} | {label} | {min(after):.3f} | {max(after):.3f} | {embeds} | "
                f"{' '.join(f'{r:.3f}' for r in after)} |\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
