"""Runs the self-test on six architectures and three candidates, and prints the fault matrix.

export PYTHONPATH=harness:backends:reports:tests
python3 tests/benchmarks/fault_matrix.py run OUT [MODEL ...] [CANDIDATE ...]
python3 tests/benchmarks/fault_matrix.py table OUT

`run` writes one JSON file per model and candidate, so that it can be split and continued; `table`
prints the Markdown that stands in docs/selftest.md. Exit code 1 where a promise is not kept.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("gpt2", "llama", "bert", "albert", "t5", "vit")
CANDIDATES = {"torch": 88, "emulated:fp16": 88, "onnxruntime": 44}
"""Faults per run; a fault in code costs ONNX Runtime an export."""
STRUCTURAL = 1e-6
"""At fp32 at least 99 % of the structural faults with a larger effect must be caught."""
PACKAGES = ("torch", "transformers", "onnxruntime", "onnx", "numpy")


def probe(name: str) -> dict[str, Any] | None:
    """Four rows: two whole, one padded on the right, one on the left; pixels by default."""
    if name == "vit":
        return None
    rng = np.random.default_rng(0)
    mask = np.ones((4, 16), dtype=np.int64)
    mask[1, 12:] = 0
    mask[2, :4] = 0
    inputs = {"input_ids": rng.integers(3, 99, (4, 16)), "attention_mask": mask}
    if name == "t5":
        inputs["decoder_input_ids"] = rng.integers(3, 99, (4, 16))
    return inputs


def run(out: Path, names: tuple[str, ...], candidates: tuple[str, ...]) -> None:
    import zoo
    from driftwalk.jsonable import encode
    from driftwalk.selftest import selftest

    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        for candidate in candidates:
            target = out / f"{name}-{candidate.replace(':', '-')}.json"
            if target.exists():
                continue
            found = selftest(
                zoo.build(name), candidate, CANDIDATES[candidate], probe=probe(name), cache=False
            )
            document = {"model": name, "result": encode(found), "seconds": found.seconds}
            target.write_text(json.dumps(document, allow_nan=False))
            sys.stderr.write(f"{name} {candidate}: {len(found.failures)} failures\n")


def load(out: Path) -> Iterator[tuple[str, str, list[dict[str, Any]], float]]:
    for name in MODELS:
        for candidate in CANDIDATES:
            path = out / f"{name}-{candidate.replace(':', '-')}.json"
            document = json.loads(path.read_text())
            yield name, candidate, document["result"]["trials"], document["seconds"]


def table(out: Path) -> int:
    write = sys.stdout.write
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    write(
        f"{datetime.datetime.now(datetime.UTC).date()}, {platform.machine()}, {os.cpu_count()} "
        f"cores, Python {platform.python_version()}, {versions}. The models are those of "
        "`tests/zoo.py` (3 layers, 32 wide), the probe has 4 x 16 tokens, one row padded on the "
        "right and one on the left.\n\n"
        "| model | candidate | faults with an effect | above the noise | caught | placed right | "
        "structural, effect above 1e-6 | caught | no effect | could not run | s |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    sums = {candidate: np.zeros(5, dtype=int) for candidate in CANDIDATES}
    misses: list[str] = []
    for name, candidate, trials, seconds in load(out):
        counted = [t for t in trials if t["outcome"] not in ("no_effect", "not_built")]
        owed = [t for t in counted if float(t["excess"]) > 1]
        caught = [t for t in owed if t["outcome"] in ("placed", "misplaced")]
        placed = [t for t in owed if t["outcome"] == "placed"]
        large = [t for t in counted if t["structural"] and float(t["effect"]) > STRUCTURAL]
        seen = [t for t in large if t["outcome"] in ("placed", "misplaced")]
        numbers = [len(owed), len(caught), len(placed), len(large), len(seen)]
        sums[candidate] += np.array(numbers)
        lost = {w: sum(t["outcome"] == w for t in trials) for w in ("no_effect", "not_built")}
        shares = [_share(*pair) for pair in ((numbers[1], len(owed)), (numbers[2], len(owed)))]
        write(
            f"| {name} | `{candidate}` | {len(counted)} | {len(owed)} | {' | '.join(shares)} | "
            f"{len(large)} | {_share(numbers[4], len(large))} | "
            f"{lost['no_effect']} | {lost['not_built']} | {seconds:.0f} |\n"
        )
        # Half precision is honest about what it cannot see; the table of kinds tells it.
        listed = owed if candidate == "emulated:fp16" else [*owed, *large]
        bad = {t["description"]: t for t in listed if t["outcome"] != "placed"}
        bad |= {t["description"]: t for t in trials if t["outcome"] == "not_built"}
        misses += [_miss(name, candidate, trial) for trial in bad.values()]
    for candidate, row in sums.items():
        write(
            f"| **all** | `{candidate}` | | {row[0]} | {_share(row[1], row[0])} | "
            f"{_share(row[2], row[0])} | {row[3]} | {_share(row[4], row[3])} | | | |\n"
        )
    write("\n" + "".join(misses))
    whole = all(row[0] == row[1] == row[2] for row in sums.values())
    fp32 = all(sums[c][4] >= 0.99 * sums[c][3] for c in ("torch", "onnxruntime"))
    return 0 if whole and fp32 else 1


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "-"


def _miss(name: str, candidate: str, trial: dict[str, Any]) -> str:
    if trial["outcome"] == "not_built":
        return f"- {name}, `{candidate}`, could not run: {trial['description']}: {trial['note']}\n"
    return (
        f"- {name}, `{candidate}`, {trial['outcome']}: {trial['description']} (at "
        f"{trial['right']}, effect {float(trial['effect']):.1e}, "
        f"{float(trial['excess']):.2g} times the limit; root cause {trial['root_cause']})\n"
    )


if __name__ == "__main__":
    what, folder, *given = sys.argv[1:]
    if what == "table":
        sys.exit(table(Path(folder)))
    chosen = tuple(item for item in given if item in MODELS) or MODELS
    specs = tuple(item for item in given if item in CANDIDATES) or tuple(CANDIDATES)
    run(Path(folder), chosen, specs)
