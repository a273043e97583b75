"""What `generate` costs beside the plain decoding of both sides and one float64 run.

PYTHONPATH=harness:backends:reports python tests/benchmarks/generation_cost.py MODEL [STEPS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

import driftwalk
from driftwalk.decoding import Decoding
from driftwalk.registry import create
from driftwalk.stage import make_probe, open_model

CANDIDATES = ("torch:cpu:fp32,attn=eager", "emulated:bf16")
TIMES = 2
PROMPT = ["The capital of France is", "Once upon a time there was a small fox who"]


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(name: str, candidate: str, steps: int) -> None:
    model = open_model(name)
    made = driftwalk.generate(model, candidate=candidate, prompt=PROMPT, steps=steps)
    say(candidate, made, made.parted, made.cache_paths)
    length = make_probe(model, PROMPT).inputs["input_ids"].shape[1] + steps
    probe = make_probe(model, None, 2, length)
    sides = [create(spec, model) for spec in ("torch", candidate)]
    for side in sides:
        side.decode(Decoding((length - steps,) + (1,) * steps))  # type: ignore[attr-defined]
        side.run(probe)
    truth = create("truth", model)

    def whole(stored: bool) -> None:
        driftwalk.generate(model, candidate=candidate, prompt=PROMPT, steps=steps, stored=stored)

    for _ in range(TIMES):
        ours, theirs, exact = (seconds(partial(one.run, probe)) for one in (*sides, truth))
        cold, warm = (seconds(partial(whole, stored)) for stored in (False, True))
        base = ours + theirs + exact
        say(
            f"| {candidate} | plain {ours:.1f} + {theirs:.1f} s, float64 {exact:.1f} s "
            f"| cold {cold:.1f} s, {cold / base:.2f} x | warm {warm:.1f} s, {warm / base:.2f} x |"
        )


def main() -> None:
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    for candidate in CANDIDATES:
        measure(sys.argv[1], candidate, steps)


if __name__ == "__main__":
    main()
