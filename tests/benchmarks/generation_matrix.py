"""Clean decoding: models, rows, seeds; alarms and partings. Nothing here may alarm.

    PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/generation_matrix.py

Candidates can be named: `generation_matrix.py onnxruntime emulated:bf16`; models with `--models`;
compiled ones want `--cache static`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from itertools import product

import numpy as np

import decoders
import driftwalk
from driftwalk.tasks.generation.result import Generation

STEPS, SEEDS = 24, 3


def rows_of_three(name: str, seed: int) -> Mapping[str, np.ndarray]:
    """Three rows of unequal length, where that is padding on the left, or an encoder's."""
    if name in ("gpt2", *decoders.ROTARY):
        return decoders.padded(name, seed)
    given = decoders.prompt(name, 3, seed=seed)
    if name == "t5":
        mask = np.ones_like(given["input_ids"])
        mask[1, 6:], mask[2, 4:] = 0, 0
        return {**given, "attention_mask": mask}
    return given


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def runs(name: str, candidate: str, rows: int, seeds: int, cache: str) -> list[Generation]:
    """One model, one candidate, a batch: a run for each seed."""
    made = []
    for seed in range(seeds):
        given = decoders.prompt(name, 1, seed=seed) if rows == 1 else rows_of_three(name, seed)
        model = decoders.build(name, seed)
        made.append(
            driftwalk.generate(model, candidate, prompt=dict(given), steps=STEPS, cache=cache)
        )
    return made


def row(name: str, candidate: str, rows: int, made: list[Generation], seconds: float) -> str:
    used = max(r.tolerance.needed for one in made for r in one.layers if r.tolerance)
    verdicts = sorted({one.verdict for one in made})
    paths = sorted({one.cache_paths["candidate"].agreement for one in made})
    parted = [f"step {p.step}{', a tie' if p.tie else ''}" for one in made if (p := one.parted)]
    cells = (name, f"`{candidate}`", rows, ", ".join(verdicts), f"{used:.0%}", ", ".join(paths))
    return f"| {' | '.join(map(str, cells))} | {'; '.join(parted) or 'never'} | {seconds:.0f} |"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("candidates", nargs="*", default=["onnxruntime"])
    asked.add_argument("--models", nargs="*", default=list(decoders.MAKERS))
    asked.add_argument("--seeds", type=int, default=SEEDS)
    asked.add_argument("--cache", default="dynamic")
    given = asked.parse_args()
    every: list[Generation] = []
    say(
        "| model | candidate | rows | verdict | most used | its decoding and one run | parted | s |"
    )
    say("|---|---|---:|---|---:|---|---|---:|")
    for name, candidate, rows in product(given.models, given.candidates, (1, 3)):
        start = time.perf_counter()
        made = runs(name, candidate, rows, given.seeds, given.cache)
        every += made
        say(row(name, candidate, rows, made, time.perf_counter() - start))
    parted = [one.parted for one in every if one.parted is not None]
    alarms, ties = sum(not one.ok for one in every), sum(one.tie for one in parted)
    say(f"\n{len(every)} runs, {alarms} alarms; {len(parted)} partings, {ties} of them ties")


if __name__ == "__main__":
    main()
