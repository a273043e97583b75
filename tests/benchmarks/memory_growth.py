"""Peak memory and time of `verify` over the bare forward passes, for more layers and more tokens.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/memory_growth.py [memory] [6x128 ...]

Width 768, vocabulary 50257, batch 2. Both tables, or the one that is named (memory,
times); all shapes, or those that are (layers x tokens).

Memory: each number is the peak of resident memory of a process of its own, from its start: one that
loads both backends and runs each once, one that verifies, one that verifies with --spill. They take
turns, for mapped weights count as far as the system happens to have them at hand; medians of
several turns. All find the export in the cache. "Over bare" is the peak less that of the bare runs
of the same turn; the room for it is told beside it. Torch's allocator on ARM is told to give freed
memory back at once: else up to 150 MB of it stay or not, by the clock.

Times: the bare runs and verify take turns in one process, everything loaded and the observer check
done; medians.

Growth is linear where as much is added per layer from 12 to 24 as from 6 to 12, and likewise per
token: the ratio of the two is told, 1 where a straight line goes through all three.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
SHAPES = [(6, 128), (12, 128), (24, 128), (12, 64), (12, 256)]
"""Layers and tokens."""
LINES = {
    "layer": [((6, 128), 6), ((12, 128), 12), ((24, 128), 24)],
    "token": [((12, 64), 64), ((12, 128), 128), ((12, 256), 256)],
}
TURNS, LAPS = 5, 5
AT_ONCE = {"MIMALLOC_PURGE_DELAY": "0"}
Row = dict[str, float]
Shape = tuple[int, int]


def opened(layers: int, length: int) -> tuple[Any, Any, Any, Any]:
    sys.path.insert(0, str(Path(__file__).parent))
    from verify_cost import gpt2

    import driftwalk
    from driftwalk_backends.probes import make_probe
    from driftwalk_backends.sources import open_model

    model = open_model(gpt2(layers))
    probe = make_probe(model, None, batch=2, length=length)
    sides = (driftwalk.backend(spec, model) for spec in ("torch", "onnxruntime"))
    return model, probe, *sides


def peak(layers: int, length: int, what: str) -> Row:
    """Of this process, from its start."""
    import driftwalk

    model, probe, reference, candidate = opened(layers, length)
    found: Row = {}
    if what == "bare":
        reference.run(probe)
        candidate.run(probe)
    else:
        report = driftwalk.verify(
            model, candidate, reference, probe, policy="dtype", spill=what == "spill"
        )
        assert report.ok, report.reason
        sizes = [4 * math.prod(layer.shape) / MIB for layer in report.layers]
        found = {"trace": sum(sizes), "largest": max(sizes)}
    return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def times(layers: int, length: int) -> Row:
    """Seconds of both bare runs and of verify."""
    import driftwalk

    model, probe, reference, candidate = opened(layers, length)
    # Of a large graph a backend keeps one session at a time: bare runs have a backend of their own.
    plain = driftwalk.backend("onnxruntime", model)

    def bare() -> None:
        reference.run(probe)
        plain.run(probe)

    def verify() -> None:
        report = driftwalk.verify(model, candidate, reference, probe, policy="dtype")
        assert report.ok, report.reason

    turns: dict[str, Callable[[], None]] = {"bare": bare, "verify": verify}
    laps: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(LAPS + 2):  # the first checks the observer, the second loads once more
        for name, run in turns.items():
            start = time.perf_counter()
            run()
            if number > 1:
                laps[name].append(time.perf_counter() - start)
    ratio = statistics.median(v / b for b, v in zip(laps["bare"], laps["verify"], strict=True))
    return {**{name: statistics.median(seen) for name, seen in laps.items()}, "ratio": ratio}


def asked(*what: object, **environment: str) -> Row:
    """What a process of its own says."""
    command = [sys.executable, __file__, *map(str, what)]
    known = {**os.environ, **environment}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=known)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_row(layers: int, length: int) -> Row:
    asked("peak", layers, length, "verify")  # exports
    turns = [memory_turn(layers, length) for _ in range(TURNS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def memory_turn(layers: int, length: int) -> Row:
    kinds = ("bare", "verify", "spill")
    found = {kind: asked("peak", layers, length, kind, **AT_ONCE) for kind in kinds}
    trace, largest = found["verify"]["trace"], found["verify"]["largest"]
    bare, verify, spill = (found[kind]["peak"] for kind in kinds)
    return {
        "trace": trace,
        "largest state": largest,
        "bare": bare,
        "verify": verify,
        "over bare": verify - bare,
        "allowed: trace + 2 states": trace + 2 * largest,
        "with spill": spill,
        "spill over bare": spill - bare,
        "allowed: 4 states": 4 * largest,
    }


def table(
    title: str, shapes: list[Shape], row: Callable[[int, int], Row], form: str, lines: list[str]
) -> None:
    """One row per shape, as soon as it is known; then how the columns in `lines` grow."""
    write, rows = sys.stdout.write, {}
    for shape in shapes:
        rows[shape] = row(*shape)
        if len(rows) == 1:
            write(f"{title}\n\n| L | T | {' | '.join(rows[shape])} |\n")
            write("| ---: " * (2 + len(rows[shape])) + "|\n")
        cells = [form.format(value) for value in rows[shape].values()]
        write(f"| {shape[0]} | {shape[1]} | {' | '.join(cells)} |\n")
        sys.stdout.flush()
    write("\n")
    for unit, line in LINES.items():
        for name in lines if all(shape in rows for shape, _ in line) else ():
            (x0, y0), (x1, y1), (x2, y2) = ((x, rows[shape][name]) for shape, x in line)
            slopes = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
            ratio = slopes[1] / slopes[0] if slopes[0] > 0 else math.nan
            told = " then ".join(f"{slope:.3g}" for slope in slopes)
            write(f"- {name}, per {unit}: {told}; ratio {ratio:.2f}\n")
    write("\n")


def main(wanted: list[str]) -> None:
    tables = [name for name in wanted if name in ("memory", "times")] or ["memory", "times"]
    sizes = [name.split("x") for name in wanted if name not in tables]
    shapes = [(int(layers), int(length)) for layers, length in sizes] or SHAPES
    if "memory" in tables:
        table("MiB", shapes, memory_row, "{:.1f}", ["verify", "over bare", "trace"])
    if "times" in tables:
        table("Seconds", shapes, lambda *s: asked("laps", *s), "{:.2f}", ["bare", "verify"])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["peak", layers, length, what]:
            sys.stdout.write(json.dumps(peak(int(layers), int(length), what)) + "\n")
        case ["laps", layers, length]:
            sys.stdout.write(json.dumps(times(int(layers), int(length))) + "\n")
        case given:
            main(given)
