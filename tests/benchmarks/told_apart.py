"""Does `bench` tell equal backends apart, and does it see a slow-down of 30 %? Prints Markdown.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/told_apart.py [RUNS]
"""

from __future__ import annotations

import sys
from collections import Counter

import driftwalk
from bench.slowed import Slowed
from driftwalk.tasks.bench.run import bench

SHAPE = {"batch": (2,), "length": (64,)}


def equal(rounds: int) -> str:
    """Two processes with the same backend."""
    found = bench("demo:decoder", ["torch", "torch"], rounds=rounds, layers=False, **SHAPE)
    (case,) = found.cases
    return case.ratio(case.entries[1]).word


def slowed(rounds: int, factor: float) -> str:
    """A backend, and the same made to take longer."""
    with driftwalk.backend("torch", "demo:decoder") as inner:
        both = [Slowed(inner, 1.0), Slowed(inner, factor)]
        (case,) = bench("demo:decoder", both, rounds=rounds, layers=False, **SHAPE).cases
        return case.ratio(case.entries[1]).word


def main(runs: int, rounds: int = 30) -> None:
    out = sys.stdout.write
    out(f"| what | said, in {runs} runs of {rounds} rounds |\n|---|---|\n")
    rows = {
        "equal, own processes": lambda: equal(rounds),
        "equal, one process": lambda: slowed(rounds, 1.0),
        "30 % slower": lambda: slowed(rounds, 1.3),
    }
    for label, run in rows.items():
        words = Counter(run() for _ in range(runs))
        said = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
        out(f"| {label} | {said} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
