"""Settings of decoding that deployments change: clean runs and seeded faults, on every model.

    python tests/benchmarks/generation_settings.py [seeds] [model ...]

Prints Markdown for docs/generation.md: for each setting, how many clean runs gave an alarm, and how
many faults were caught with the right cause and layer. Exit code 1 where one was not.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import transformers
from torch import nn

import decoders
from driftwalk.errors import DriftwalkError
from driftwalk.tasks.generation.result import Generation
from driftwalk.tasks.generation.run import generate_all

STEPS = 10
CLEAN = ("torch,attn=eager", "emulated:bf16", "emulated:fp16")
Fault = tuple[str, Callable[[nn.Module], None], str, str]
"""Its name, what it does, and the cause and the layer that should be named; no layer: any."""

FAULTS: dict[str, list[Fault]] = {
    "beams": [
        ("one layer's cache is not reordered", decoders.not_reordered, "cache", "layer.2"),
        (
            "no cache is reordered",
            partial(decoders.not_reordered, layers=()),
            "cache",
            "layer.0",
        ),
    ],
    "chunk": [("positions begin again", decoders.pieces_begin_at_0, "shared", "")],
    "draft": [
        ("cropped one too far", decoders.cropped_too_far, "cache", "layer.0"),
        ("cropped one too little", decoders.cropped_too_little, "cache", "layer.0"),
        ("a wrong token stays", decoders.kept_of_the_draft, "cache", "layer.2"),
    ],
}
CANNOT = {("mamba", "chunk"), ("mamba", "draft")}
"""Each piece begins its scan anew in transformers 5.22 (found as drift of both sides), and a state
cannot be taken back (refused)."""
COUNTS_POSITIONS = ("gpt2", *decoders.ROTARY)
"""Models that can be told their positions."""


def say(words: str) -> None:
    sys.stdout.write(words + "\n")


def setting(name: str, model: str) -> dict[str, int]:
    behind = model in ("t5", "whisper")
    return {name: {"beams": 3, "chunk": 1 if behind else 3, "draft": 3}[name]}


def faults_of(name: str, model: str) -> list[Fault]:
    return FAULTS[name] if name != "chunk" or model in COUNTS_POSITIONS else []


def caught(report: Generation, fault: Fault) -> bool:
    _, _, cause, layer = fault
    root = report.root_cause
    return report.cause == cause and root is not None and root.point.name.endswith(layer)


def main(seeds: int, names: list[str]) -> int:
    clean, found, wrong = Counter[str](), Counter[str](), []
    runs, faulty = Counter[str](), Counter[str]()
    for name in names:
        for seed in range(seeds):
            for kind in (one for one in FAULTS if (name, one) not in CANNOT):
                model, known = decoders.build(name, seed), faults_of(kind, name)
                ports = [decoders.broken(model, fault[1]) for fault in known]
                sound = [one for one in CLEAN if name != "mamba" or "attn" not in one]
                given = model, [*sound, *ports], None, decoders.prompt(name, seed=seed), STEPS
                try:
                    reports = generate_all(*given, **setting(kind, name))
                except DriftwalkError as error:
                    wrong.append(f"{name}, {kind}, seed {seed}: {error}")
                    continue
                for spec, report in zip(sound, reports, strict=False):
                    runs[kind] += 1
                    tied = report.parted is None or report.parted.tie
                    clean[kind] += report.ok and tied
                    if not (report.ok and tied):
                        wrong.append(f"{name}, {kind}, seed {seed}, {spec}: {report}")
                for fault, report in zip(known, reports[len(sound) :], strict=True):
                    faulty[fault[0]] += 1
                    found[fault[0]] += caught(report, fault)
                    if not caught(report, fault):
                        said = f"{report.cause}, {report.root_cause}, {report.explanation}"
                        wrong.append(f"{name}, seed {seed}, {fault[0]}: {said}")
    say(f"torch {torch.__version__}, transformers {transformers.__version__}, {seeds} seeds\n")
    say("| setting | clean runs | without an alarm | fault | seeded | caught, cause and layer |")
    say("|---|--:|--:|---|--:|--:|")
    for kind, known in FAULTS.items():
        for number, (fault, *_) in enumerate(known):
            head = f"`{kind}` | {runs[kind]} | {clean[kind]}" if number == 0 else " | | "
            say(f"| {head} | {fault} | {faulty[fault]} | {found[fault]} |")
    say("\n" + "\n".join(f"- {line}" for line in wrong))
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or list(decoders.MAKERS)))
