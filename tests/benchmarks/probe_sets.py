"""What a set of probes costs beside the plain runs of both sides, with stored calibrations.

    python tests/benchmarks/probe_sets.py FOLDER [--candidate SPEC] [--probes 256] [--length 32]
        [--repeats 5] [--mixed] [--thorough]

Made of random ids, each probe two rows, or, mixed, one row of a length as texts have (log-normal,
6 to 192). The set is run once to store calibrations. Then, several times, between plain runs of
every probe on both sides, taking turns, as driftwalk runs them: the ratio is that to the mean of
the plain runs before and after it, by the wall clock and by the processor's, which neighbours on a
shared machine disturb less. Beside that stands the loop that one would write without driftwalk (the
module called, a session of ONNX Runtime with its defaults, whose threads spin for a while after
each run). Memory is the resident set of the process after a quarter, a half and all of a set.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch

import driftwalk
from driftwalk.adapter import Backend
from driftwalk.progress import Progress
from driftwalk.stage import make_probe, open_model
from driftwalk.states import Probe


class Memory(Progress):
    """The resident set at each stage."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @contextmanager
    def stage(self, text: str, extra: bool = False) -> Iterator[None]:
        yield
        if text.startswith("probe "):
            with open("/proc/self/statm") as file:
                self.seen.append(int(file.read().split()[1]) * resource.getpagesize() >> 20)


def counted(kind: type[Backend], spent: Counter[str]) -> None:
    """Have a class of backends book the time of its runs by what they are for."""
    for name in ("run", "stream", "trace", "replay", "exercised"):
        plain = getattr(kind, name, None)
        if plain is None:
            continue

        def timed(self, *given, _plain=plain, _name=name, **more):  # type: ignore[no-untyped-def]
            start = time.perf_counter()
            try:
                return _plain(self, *given, **more)
            finally:
                spent[f"{self.spec} {_name}"] += time.perf_counter() - start

        setattr(kind, name, timed)


def in_loops(model: Any, graph: str, threads: int, probes: Sequence[Probe]) -> list[float]:
    """Seconds with nothing of driftwalk in between: by turns, and one side after the other."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
    taken = [one.name for one in session.get_inputs()]
    fed = [{n: a for n, a in probe.inputs.items() if n in taken} for probe in probes]
    tensors = [{n: torch.tensor(a) for n, a in probe.inputs.items()} for probe in probes]
    turns = (
        [partial(model, **given) for given in tensors],
        [partial(session.run, None, f) for f in fed],
    )
    seconds = []
    with torch.inference_mode():
        turns[0][0]()
        for order in (chain(*zip(*turns, strict=True)), chain(*turns)):
            start = time.perf_counter()
            for run in order:
                run()
            seconds.append(time.perf_counter() - start)
    return seconds


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder")
    words.add_argument("--candidate", default="onnxruntime,dynamic=on")
    words.add_argument("--probes", type=int, default=256)
    words.add_argument("--length", type=int, default=32)
    words.add_argument("--rows", type=int, default=2)
    words.add_argument("--repeats", type=int, default=5)
    words.add_argument("--mixed", action="store_true")
    words.add_argument("--thorough", action="store_true")
    return words.parse_args()


def plain_runs(sides: Sequence[Backend], probes: Sequence[Probe]) -> tuple[float, float]:
    """Seconds and seconds of the processor for every probe on every side, taking turns."""
    start, busy = time.perf_counter(), time.process_time()
    for probe in probes:
        for side in sides:
            side.run(probe)
    return time.perf_counter() - start, time.process_time() - busy


def spread(numbers: Sequence[float]) -> str:
    return f"{median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def main() -> None:
    asked = arguments()
    rng = np.random.default_rng(0)
    model = open_model(asked.folder)
    probes = []
    for _ in range(asked.probes):
        longer = int(np.clip(np.exp(rng.normal(3.6, 0.6)), 6, 192))
        shape = (1, longer) if asked.mixed else (asked.rows, asked.length)
        ids = rng.integers(1000, model.config.vocab_size, shape)
        probes.append({"input_ids": ids, "attention_mask": np.ones(shape, dtype=np.int64)})
    how = {"thorough": asked.thorough}
    start = time.perf_counter()
    driftwalk.verify(model, asked.candidate, probes=probes, **how)
    tell(f"first run, calibrations made and stored: {time.perf_counter() - start:.1f} s")
    sides = [driftwalk.backend(spec, model) for spec in ("torch", asked.candidate)]
    made = [make_probe(model, probe) for probe in probes]
    for side in sides:
        side.run(made[0])
    plain, whole, memory = [plain_runs(sides, made)], [], Memory()
    for _ in range(asked.repeats):
        memory = Memory()
        start, busy = time.perf_counter(), time.process_time()
        report = driftwalk.verify(model, asked.candidate, probes=probes, progress=memory, **how)
        whole.append((time.perf_counter() - start, time.process_time() - busy))
        plain.append(plain_runs(sides, made))
    told = report.probe_set
    if told is not None:
        tell(f"verdict {report.verdict}; {told.count} probes, {told.screened} screened")
    both = [[(a + b) / 2 for a, b in zip(*pair, strict=True)] for pair in pairwise(plain)]
    for clock, word in enumerate(("seconds", "of the processor")):
        ratios = [one[clock] / two[clock] for one, two in zip(whole, both, strict=True)]
        sets, runs = ([one[clock] for one in some] for some in (whole, plain))
        tell(f"{word}: set {spread(sets)}, plain runs {spread(runs)}; ratio {spread(ratios)}")
    if asked.candidate.startswith("onnxruntime"):
        threads = int(sides[1].spec.options.get("threads", 0))
        loops = in_loops(model.module, str(sides[1]._files(made[0])[0]), threads, made)
        seconds = median(one for one, _ in whole)
        words = ("by turns", "one side after the other")
        for word, taken in zip(words, loops, strict=True):
            tell(f"in a loop, {word}: {taken:.1f} s, ratio {seconds / taken:.2f}")
    quarter = len(memory.seen) // 4
    at = [memory.seen[n] for n in (quarter - 1, 2 * quarter - 1, -1)]
    tell(f"memory after a quarter, a half, all: {at} MiB")
    spent: Counter[str] = Counter()
    for kind in {type(side) for side in sides}:
        counted(kind, spent)
    few = probes[: min(32, len(probes))]
    start = time.perf_counter()
    driftwalk.verify(model, asked.candidate, probes=few, **how)
    tell(
        f"of {len(few)} probes, {time.perf_counter() - start:.1f} s: "
        + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent.most_common())
    )


if __name__ == "__main__":
    main()
