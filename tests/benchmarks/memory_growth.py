"""Peak memory and time of `verify` over the bare forward passes, for more layers and more tokens.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/memory_growth.py [LAYERS LENGTH]

Linux only: the peak of resident memory is set back before each part (/proc/self/clear_refs). Each
shape has a process of its own, with both backends loaded and exported before. Excess is the peak of
verify less that of the two bare runs; the room for it is told beside it. Width 768, vocabulary
50257, batch 2.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB, ROUNDS = 1 << 20, 3
SHAPES = [(6, 128), (12, 128), (24, 128), (12, 64), (12, 256)]


def peak_of(run: Callable[[], object]) -> tuple[float, float]:
    """Peak of resident memory in MiB, and seconds."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    run()
    return _status("VmHWM"), time.perf_counter() - start


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def measure(layers: int, length: int) -> dict[str, float]:
    sys.path.insert(0, str(Path(__file__).parent))
    from verify_cost import gpt2

    import driftwalk
    from driftwalk_backends.probes import make_probe
    from driftwalk_backends.sources import open_model

    model = open_model(gpt2(layers))
    probe = make_probe(model, None, batch=2, length=length)
    reference = driftwalk.backend("torch", model)
    candidate = driftwalk.backend("onnxruntime", model)

    def bare() -> None:
        reference.run(probe)
        candidate.run(probe)

    def verify(**options: object) -> None:
        report = driftwalk.verify(
            model,
            candidate=candidate,
            reference=reference,
            probe=probe,
            policy="dtype",
            **options,
        )
        assert report.ok, report.reason

    verify()  # loads both sessions, runs the observer check
    trace = reference.trace(probe)
    sizes = [state.array.nbytes / MIB for state in trace]
    del trace
    found: dict[str, float] = {"trace": sum(sizes), "largest": max(sizes), "layer": sizes[1]}
    turns: dict[str, Callable[[], object]] = {
        "bare": bare,
        "verify": verify,
        "spill": lambda: verify(spill=True),
    }
    laps = [{name: peak_of(run) for name, run in turns.items()} for _ in range(ROUNDS)]
    for name in turns:
        found[name] = statistics.median(lap[name][0] for lap in laps)
        found[f"{name} s"] = statistics.median(lap[name][1] for lap in laps)
    return found


def main() -> None:
    write = sys.stdout.write
    write(
        "| L | T | bare, s | verify, s | trace, MiB | largest state | excess of verify "
        "| trace + 2 states | excess with spill | 4 states |\n" + "| ---: " * 10 + "|\n"
    )
    for layers, length in SHAPES:
        command = [sys.executable, __file__, str(layers), str(length)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        f = json.loads(done.stdout.splitlines()[-1])
        write(
            f"| {layers} | {length} | {f['bare s']:.2f} | {f['verify s']:.2f} | {f['trace']:.1f} "
            f"| {f['largest']:.1f} | {f['verify'] - f['bare']:.1f} "
            f"| {f['trace'] + 2 * f['largest']:.1f} | {f['spill'] - f['bare']:.1f} "
            f"| {4 * f['largest']:.1f} |\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.stdout.write(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
    else:
        main()
