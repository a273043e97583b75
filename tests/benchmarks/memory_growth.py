"""Peak memory and time of `verify` over the bare forward passes, for more layers and more tokens.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/memory_growth.py [LAYERS LENGTH WHAT]

Each number is the peak of resident memory of a process of its own, from its start: one that loads
both backends and runs each once, one that verifies, one that verifies with --spill. All find the
export in the cache. Excess is the peak of verify less that of the bare runs; the room for it is
told beside it. Width 768, vocabulary 50257, batch 2. The bare runs and verify are also timed, with
everything loaded.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

MIB = 1 << 20
SHAPES = {(6, 128): 1, (12, 128): 5, (24, 128): 1, (12, 64): 1, (12, 256): 1}
"""Layers and tokens, and how many processes of each kind."""
LAPS = 5


def measure(layers: int, length: int, what: str) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parent))
    from verify_cost import gpt2

    import driftwalk
    from driftwalk_backends.probes import make_probe
    from driftwalk_backends.sources import open_model

    model = open_model(gpt2(layers))
    probe = make_probe(model, None, batch=2, length=length)
    reference = driftwalk.backend("torch", model)
    candidate = driftwalk.backend("onnxruntime", model)

    def run() -> dict[str, float]:
        if what == "bare":
            reference.run(probe)
            candidate.run(probe)
            return {}
        sides = {"candidate": candidate, "reference": reference, "probe": probe}
        report = driftwalk.verify(model, policy="dtype", spill=what == "spill", **sides)
        assert report.ok, report.reason
        sizes = [4 * _product(layer.shape) / MIB for layer in report.layers]
        return {"trace": sum(sizes), "largest": max(sizes)}

    found = run()
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    run()  # verify has closed the plain session; this loads the traced one again
    laps = []
    for _ in range(LAPS):
        start = time.perf_counter()
        run()
        laps.append(time.perf_counter() - start)
    return {**found, "seconds": statistics.median(laps)}


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _asked(layers: int, length: int, what: str, times: int) -> dict[str, float]:
    """Medians over some processes."""
    seen = []
    for _ in range(times):
        command = [sys.executable, __file__, str(layers), str(length), what]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seen.append(json.loads(done.stdout.splitlines()[-1]))
    return {name: statistics.median(one[name] for one in seen) for name in seen[0]}


def main() -> None:
    write = sys.stdout.write
    write(
        "| L | T | bare, s | verify, s | trace, MiB | largest state | excess of verify "
        "| trace + 2 states | excess with spill | 4 states |\n" + "| ---: " * 10 + "|\n"
    )
    for (layers, length), times in SHAPES.items():
        _asked(layers, length, "verify", 1)  # exports
        f = {what: _asked(layers, length, what, times) for what in ("bare", "verify", "spill")}
        verify, excess = f["verify"], {w: f[w]["peak"] - f["bare"]["peak"] for w in f}
        write(
            f"| {layers} | {length} | {f['bare']['seconds']:.2f} | {verify['seconds']:.2f} "
            f"| {verify['trace']:.1f} | {verify['largest']:.1f} | {excess['verify']:.1f} "
            f"| {verify['trace'] + 2 * verify['largest']:.1f} | {excess['spill']:.1f} "
            f"| {4 * verify['largest']:.1f} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 3:
        found = measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        main()
