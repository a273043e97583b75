"""The comparator with its full metric set against its peers, on 12 pairs of (4, 256, 768) fp32.

Each is given all pairs at once: driftwalk two traces, Polygraphy two results, the others a list.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/comparator_speed.py

Polygraphy is left out where it is not installed. Ratios of one run: all take turns, medians of
ROUNDS. `read` is what the machine can do at best: both arrays are read once, by as many threads as
the comparator has, each summing products of blocks.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch

from driftwalk import Probe, compare
from driftwalk.states import BackendInfo, Point, State, Trace
from driftwalk.tolerance import BY_DTYPE
from driftwalk.workers import in_threads, workers

STATES, SHAPE, ROUNDS = 12, (4, 256, 768), 9
TOLERANCE = BY_DTYPE["fp32"]
RTOL, ATOL = TOLERANCE.rtol, TOLERANCE.atol


def pairs(noise: float = 1e-6):
    """States and what another summation order makes of them: noise far below the tolerance."""
    rng = np.random.default_rng(0)
    for _ in range(STATES):
        r = rng.standard_normal(SHAPE, np.float32)
        yield r, r + rng.standard_normal(SHAPE, np.float32) * np.float32(noise)


def trace(arrays) -> Trace:
    states = tuple(State(Point(f"layer.{n}"), array) for n, array in enumerate(arrays))
    info = BackendInfo("arrays", "arrays", "cpu", "fp32")
    return Trace(states, Probe({"ids": np.zeros(SHAPE[:2], np.int64)}), info)


def contestants(given) -> dict[str, Callable[[], object]]:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    tensors = [(torch.from_numpy(r), torch.from_numpy(c)) for r, c in given]
    flat = [(r.reshape(-1, SHAPE[-1]), c.reshape(-1, SHAPE[-1])) for r, c in given]

    def read() -> list[float]:
        return in_threads(lambda n: float(np.einsum("ij,ij->", *flat[n])), range(len(flat)))

    reference, candidate = (trace([pair[side] for pair in given]) for side in (0, 1))
    found: dict[str, Callable[[], object]] = {
        "driftwalk": lambda: compare(reference, candidate, TOLERANCE),
        "torch.testing.assert_close": lambda: [
            torch.testing.assert_close(c, r, atol=ATOL, rtol=RTOL) for r, c in tensors
        ],
        "numpy.allclose": lambda: [np.allclose(c, r, atol=ATOL, rtol=RTOL) for r, c in given],
    }
    if find_spec("polygraphy"):
        found["polygraphy CompareFunc.simple"] = polygraphy(given)
    return {**found, "read": read}


def polygraphy(given) -> Callable[[], object]:
    from polygraphy.comparator import CompareFunc, IterationResult
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = {"": G_LOGGER.ULTRA_VERBOSE + 1000}
    left = IterationResult({f"layer.{n}": r for n, (r, _) in enumerate(given)})
    right = IterationResult({f"layer.{n}": c for n, (_, c) in enumerate(given)})
    simple = CompareFunc.simple(atol=ATOL, rtol=RTOL)
    return lambda: simple(left, right)


def medians(given, rounds: int = ROUNDS) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        for name, run in contestants_of(given).items():
            start = time.perf_counter()
            run()
            if number:  # the first warms up
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


_made: dict[int, dict[str, Callable[[], object]]] = {}


def contestants_of(given) -> dict[str, Callable[[], object]]:
    return _made.setdefault(id(given), contestants(given))


def main() -> None:
    given = list(pairs())
    size = sum(r.nbytes + c.nbytes for r, c in given)
    found = medians(given)
    ours = found["driftwalk"]
    write = sys.stdout.write
    write(f"{STATES} x {SHAPE} float32, {workers()} threads, medians of {ROUNDS}\n\n")
    write("| | ms | GB/s | driftwalk is faster by |\n| --- | ---: | ---: | ---: |\n")
    for name, seconds in found.items():
        write(f"| {name} | {seconds * 1e3:.1f} | {size / seconds / 1e9:.2f} ")
        write(f"| {seconds / ours:.1f} x |\n")
    write(f"\nFraction of the two-array read bandwidth reached: {found['read'] / ours:.3f}\n")


if __name__ == "__main__":
    main()
