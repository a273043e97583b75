"""Honest pairs under the calibrated policy: how often does the gate cry wolf? Prints Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/clean_matrix.py
"""

from __future__ import annotations

import datetime
import platform
import sys

import torch
import transformers

import driftwalk
import zoo
from driftwalk.judge.constants import FLOOR_ROUNDOFFS, YARDSTICKS
from driftwalk_backends.default_probe.search import default_inputs
from driftwalk_backends.sources import open_model

SEEDS = (0, 1, 2)
CANDIDATES = (
    "torch:cpu:fp32,attn=eager",
    "torch:cpu:fp32,attn=sdpa",
    "onnxruntime",
    "emulated:fp16",
    "emulated:bf16",
)
HALF = ("torch:cuda:fp16", "torch:cuda:bf16", "torch:cuda:fp32", "torch:cuda:fp32,tf32=on")


def main(names: list[str]) -> None:
    out = sys.stdout.write
    candidates = CANDIDATES + (HALF if torch.cuda.is_available() else ())
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    out(
        f"{datetime.datetime.now(datetime.UTC).date()}, {platform.machine()}{gpu}, torch "
        f"{torch.__version__}, transformers {transformers.__version__}, Python "
        f"{platform.python_version()}; k = {YARDSTICKS:g}, floor = {FLOOR_ROUNDOFFS:g} "
        f"roundoffs; seeds {SEEDS}, probes 2 x 16, padded and unpadded.\n\n"
        "Each cell: false alarms / runs, and the largest error seen in units of the yardstick's "
        "(total error at any point; introduced error at any point). The limit is k.\n\n"
    )
    out(f"| model | {' | '.join(f'`{c}`' for c in candidates)} |\n")
    out(f"|---|{'---|' * len(candidates)}\n")
    alarms = runs = 0
    for name in names:
        cells = []
        worst: dict[str, list[float]] = {c: [0.0, 0.0] for c in candidates}
        failed = dict.fromkeys(candidates, 0)
        for seed in SEEDS:
            model = open_model(zoo.build(name, seed))
            for padded in (True, False):
                inputs = default_inputs(model, 2, 16, seed)
                if not padded:
                    inputs.pop("attention_mask", None)
                for candidate in candidates:
                    report = driftwalk.verify(
                        model, candidate=candidate, probe=inputs, policy="calibrated", blame=True
                    )
                    runs += 1
                    failed[candidate] += not report.ok or report.root_cause is not None
                    for row in report.layers:
                        if row.truth and row.blame:
                            total, own = worst[candidate]
                            worst[candidate] = [
                                max(total, row.tolerance.needed * YARDSTICKS),
                                max(own, row.blame.norms["introduced"].over(
                                    row.blame.norms["allowed"])[0] * YARDSTICKS),
                            ]  # fmt: skip
        for candidate in candidates:
            alarms += failed[candidate]
            total, own = worst[candidate]
            cells.append(f"{failed[candidate]}/{2 * len(SEEDS)}, {total:.2f}; {own:.2f}")
        out(f"| {name} | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    out(f"\nFalse alarms: {alarms} of {runs} runs.\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(zoo.NAMES))
