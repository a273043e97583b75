"""Real weights: false alarms on 40 prompts, and faults in half precision.

real_weights.py clean MODEL SPEC ...
real_weights.py faults MODEL SPEC ...
real_weights.py factors MODEL SPEC ...
real_weights.py table FILE ...

with PYTHONPATH=harness:backends:reports:tests. The first three write a line of JSON for each run;
`--part 2/15` does every fifteenth of them, for several processes; `table` sums the lines up. MODEL
is a folder: SmolLM2-135M, all-MiniLM-L6-v2 and the ALBERT of rxnmapper were used. A model whose
layers share their weights has a fault in all of them, and its place is the first.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import driftwalk
from driftwalk.registry import create
from driftwalk_backends.sources import LoadedModel, open_model

PROMPTS = (
    *("The", "The end.", "The capital of France is", "The cat sat on the mat and"),
    *("The quick brown fox jumps over the lazy dog.", "The theory of relativity states that"),
    *("The following code prints a list:", "The the the the the the"),
    *("Hello", "Hi", " 42", "yes", "Paris", "A", "!!!???...", "😀😀😀", "你好,世界"),
    *("2 + 2 =", "aaaaaaaaaaaaaaaaaaaaaaaa", "Above\n\n\nbelow", "Bonjour, je m'appelle"),
    *("def f(x):\n    return x + 1\n", "import torch\nfor i in range(10):\n    print(i)\n"),
    "class Node:\n    def __init__(self, value):\n        self.value = value\n",
    '#include <stdio.h>\nint main(void) { printf("hi\\n"); return 0; }\n',
    "SELECT name, age FROM people WHERE age > 30 ORDER BY name;",
    *("<html><body><h1>Title</h1></body></html>", '{"a": [1, 2, 3], "b": null}'),
    "Once upon a time, in a small village",
    "In 1969, the first humans landed on the Moon.",
    "Water boils at 100 degrees Celsius at sea level.",
    "She sells sea shells by the sea shore.",
    "To be, or not to be, that is the question:",
    "It was the best of times, it was the worst of times,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is the largest planet?\nA:",
    "1. Preheat the oven.\n2. Mix the flour\n3.",
    "Der schnelle braune Fuchs",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "CC(=O)Oc1ccccc1C(=O)O>>CC(=O)O.Oc1ccccc1C(=O)O",
)
TEXT = (
    "A gate that compares two implementations of one model asks whether what lies between them is"
    " rounding alone, or a fault in one of the two. The first layer that departs is not always the"
    " layer that caused it: an error may travel along the residual stream for a long time before"
    " anything shows, and one large element may hide it from every norm of the whole state."
)
FACTORS = (0.5, 0.7, 0.8, 0.9, 0.95)


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def scaled(part: nn.Module, factor: float) -> None:
    for parameter in part.parameters():
        parameter.mul_(factor)


def dead(part: nn.Module, columns: slice) -> None:
    part.weight[:, columns] = 0


@dataclass(frozen=True)
class Parts:
    """Where a block adds what its attention, and what its MLP, has made."""

    attention: nn.Module
    mlp: nn.Module
    head: int


def parts_of(block: nn.Module, heads: int) -> Parts:
    """Known by the names of the architectures above; anything else is refused."""
    for attention, mlp in (
        ("self_attn.o_proj", "mlp.down_proj"),
        ("attention.output.dense", "output.dense"),
        ("attention.dense", "ffn_output"),
    ):
        try:
            found = block.get_submodule(attention), block.get_submodule(mlp)
        except AttributeError:
            continue
        return Parts(*found, head=found[0].in_features // heads)
    raise SystemExit(f"No attention and MLP that are known here in {type(block).__name__}.")


FAULTS: dict[str, Callable[[Parts], None]] = {
    "attention x 0.5": lambda parts: scaled(parts.attention, 0.5),
    "two heads dead": lambda parts: dead(parts.attention, slice(0, 2 * parts.head)),
    "20 % of the MLP dead": lambda parts: dead(parts.mlp, slice(0, None, 5)),
    "MLP x 0.6": lambda parts: scaled(parts.mlp, 0.6),
    "attention x 0.9": lambda parts: scaled(parts.attention, 0.9),
}


def blocks_of(module: nn.Module) -> tuple[list[nn.Module], bool]:
    """The blocks in order, and whether they are one block used again and again."""
    groups = [m for m in module.modules() if type(m).__name__ == "AlbertLayer"]
    if groups:
        return groups, True
    return list(max((m for m in module.modules() if isinstance(m, nn.ModuleList)), key=len)), False


def has_tokenizer(model: LoadedModel) -> bool:
    try:
        return model.tokenizer is not None
    except driftwalk.DriftwalkError:
        return False


def random_ids(model: LoadedModel, seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.module.config.vocab_size, (1, length))


def prompts(model: LoadedModel) -> dict[str, object]:
    """The texts; as many rows of random ids of all lengths, where there is no tokenizer."""
    if has_tokenizer(model):
        return {text: text for text in PROMPTS}
    lengths = range(1, len(PROMPTS) + 1)
    return {f"{n} ids": {"input_ids": random_ids(model, n, n)} for n in lengths}


def probes(model: LoadedModel) -> dict[str, dict[str, np.ndarray]]:
    """Text (where there is a tokenizer) and random ids, of 40 tokens and of 64."""
    rows = {"random ids": random_ids(model, 1, 64)}
    if has_tokenizer(model):
        rows["text"] = np.array(model.tokenizer(TEXT)["input_ids"])[None]
        if rows["text"].shape[1] < 64:
            raise SystemExit(f"The text has {rows['text'].shape[1]} tokens, not 64.")
    return {
        f"{kind}, {length} tokens": {"input_ids": found[:, :length]}
        for kind, found in rows.items()
        for length in (40, 64)
    }


def told(report: driftwalk.Report) -> dict[str, object]:
    used = [
        (row.tolerance.needed, row.point.name, row.tolerance.norm)
        for row in report.layers
        if row.tolerance is not None
    ]
    first = report.first_divergence
    return {
        "verdict": report.verdict,
        "first": first.point.name if first else None,
        "cause": report.cause,
        "used": max(used, default=None),
    }


def clean(model: LoadedModel, specs: list[str]) -> Iterator[tuple[dict, Callable[[], object]]]:
    for name, probe in prompts(model).items():
        for spec in specs:
            yield (
                {"prompt": name, "candidate": spec},
                lambda probe=probe, spec=spec: driftwalk.verify(
                    model, candidate=spec, probe=probe, blame=False
                ),
            )


def faulty(
    model: LoadedModel, spec: str, number: int, change: Callable[[Parts], None], probe: dict
) -> driftwalk.Report:
    module = copy.deepcopy(model.module)
    with torch.no_grad():
        change(parts_of(blocks_of(module)[0][number], module.config.num_attention_heads))
    candidate = create(spec, LoadedModel(module, "faulty"))
    return driftwalk.verify(model, candidate=candidate, probe=probe)


def faults(model: LoadedModel, specs: list[str]) -> Iterator[tuple[dict, Callable[[], object]]]:
    blocks, _ = blocks_of(model.module)
    step = 3 if len(blocks) > 12 else 1
    for spec in specs:
        for number in range(0, len(blocks), step):
            for kind, change in FAULTS.items():
                for probe, ids in probes(model).items():
                    if kind == "attention x 0.9" and not probe.endswith("64 tokens"):
                        continue
                    yield (
                        {"fault": kind, "layer": number, "probe": probe, "candidate": spec},
                        lambda args=(spec, number, change, ids): faulty(model, *args),
                    )


def factors(model: LoadedModel, specs: list[str]) -> Iterator[tuple[dict, Callable[[], object]]]:
    """A whole matrix times a factor: how near to 1 is it still seen?"""
    blocks, _ = blocks_of(model.module)
    ids = list(probes(model).values())[-1]
    for spec in specs:
        for number in range(0, len(blocks), 3 if len(blocks) > 12 else 1):
            for part in ("attention", "mlp"):
                for factor in FACTORS:

                    def change(parts: Parts, part: str = part, factor: float = factor) -> None:
                        scaled(getattr(parts, part), factor)

                    yield (
                        {"part": part, "factor": factor, "layer": number, "candidate": spec},
                        lambda args=(spec, number, change, ids): faulty(model, *args),
                    )


def table(lines: list[dict]) -> None:
    """False alarms of the clean runs; faults caught and placed; the factors seen, by layer."""
    runs = [line for line in lines if "prompt" in line]
    for spec in dict.fromkeys(line["candidate"] for line in runs):
        these = [line for line in runs if line["candidate"] == spec]
        alarms = sum(line["verdict"] != "pass" for line in these)
        used = max(line["used"][0] for line in these if line["used"])
        write(f"| `{spec}` | {alarms} of {len(these)} | {used:.0%} |")
    seeded = [line for line in lines if "fault" in line]
    for spec, kind in dict.fromkeys((line["candidate"], line["fault"]) for line in seeded):
        these = [line for line in seeded if (line["candidate"], line["fault"]) == (spec, kind)]
        caught = [line for line in these if line["verdict"] == "drift"]
        placed = sum(line["cause"] == f"layer.{line['layer']}" for line in caught)
        write(f"| `{spec}` | {kind} | {len(these)} | {len(caught)} | {placed} |")
    tried = [line for line in lines if "factor" in line]
    for spec, part in dict.fromkeys((line["candidate"], line["part"]) for line in tried):
        these = [line for line in tried if (line["candidate"], line["part"]) == (spec, part)]
        row = []
        for layer in sorted({line["layer"] for line in these}):
            seen = [
                line["factor"]
                for line in these
                if (line["layer"], line["cause"]) == (layer, f"layer.{layer}")
            ]
            row.append(f"{layer}: {max(seen, default='none')}")
        write(f"| `{spec}` | {part} | {', '.join(row)} |")


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "table":
        table([json.loads(line) for name in rest for line in Path(name).read_text().splitlines()])
        return
    part, parts = 0, 1
    if "--part" in rest:
        at = rest.index("--part")
        part, parts = (int(number) for number in rest[at + 1].split("/"))
        del rest[at : at + 2]
    model = open_model(rest[0])
    jobs = {"clean": clean, "faults": faults, "factors": factors}[what](model, rest[1:])
    for number, (job, run) in enumerate(jobs):
        if number % parts != part:
            continue
        start = time.monotonic()
        found = told(run())
        write(json.dumps(job | found | {"s": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    main()
