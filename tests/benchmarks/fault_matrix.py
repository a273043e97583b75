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
    from driftwalk.selftest.run import selftest

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


Trial = dict[str, Any]


def load(out: Path) -> Iterator[tuple[str, str, list[Trial], float]]:
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
        "| model | candidate | faults with an effect | above the noise | caught | of these by the "
        "verdict alone | placed right | structural, effect above 1e-6 | caught | no effect | could "
        "not run | s |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    sums = {candidate: np.zeros(6, dtype=int) for candidate in CANDIDATES}
    kinds: dict[str, dict[str, list[Trial]]] = {}
    misses: list[str] = []
    for name, candidate, trials, seconds in load(out):
        counted = [t for t in trials if t["outcome"] not in ("no_effect", "not_built")]
        owed = [t for t in counted if float(t["excess"]) > 1]
        large = [t for t in counted if t["structural"] and float(t["effect"]) > STRUCTURAL]
        numbers = [
            len(owed),
            sum(map(_caught, owed)),
            sum(t["verdict"] != "pass" for t in owed),
            sum(t["outcome"] == "placed" for t in owed),
            len(large),
            sum(map(_caught, large)),
        ]
        sums[candidate] += np.array(numbers)
        lost = [sum(t["outcome"] == word for t in trials) for word in ("no_effect", "not_built")]
        cells = [*_cells(numbers), *map(str, lost), f"{seconds:.0f}"]
        write(f"| {name} | `{candidate}` | {len(counted)} | {' | '.join(cells)} |\n")
        for trial in counted:
            kinds.setdefault(trial["kind"], {}).setdefault(candidate, []).append(trial)
        misses += [_miss(name, candidate, t) for t in trials if _is_told(candidate, t)]
    for candidate, row in sums.items():
        write(f"| **all** | `{candidate}` | | {' | '.join(_cells(list(row)))} | | | |\n")
    write(
        "\nBy kind, caught of all that have an effect; in brackets the largest effect that was not "
        f"caught, relative to the state (L2):\n\n| fault | {' | '.join(CANDIDATES)} |\n"
        f"|---|{'---|' * len(CANDIDATES)}\n"
    )
    for kind, found in kinds.items():
        cells = [_blind(found.get(candidate, [])) for candidate in CANDIDATES]
        write(f"| `{kind}` | {' | '.join(cells)} |\n")
    write("\n" + "".join(misses))
    whole = all(row[0] == row[1] == row[3] for row in sums.values())
    fp32 = all(sums[c][5] >= 0.99 * sums[c][4] for c in ("torch", "onnxruntime"))
    return 0 if whole and fp32 else 1


def _cells(numbers: list[int]) -> list[str]:
    owed, caught, shown, placed, large, seen = map(int, numbers)
    shares = [_share(n, owed) for n in (caught, shown, placed)]
    return [str(owed), *shares, str(large), _share(seen, large)]


def _caught(trial: Trial) -> bool:
    return trial["outcome"] in ("placed", "misplaced")


def _blind(trials: list[Trial]) -> str:
    missed = [float(t["effect"]) for t in trials if not _caught(t)]
    most = f" ({max(missed):.0e})" if missed else ""
    return f"{sum(map(_caught, trials))} of {len(trials)}{most}"


def _is_told(candidate: str, trial: Trial) -> bool:
    """What is not as one would wish; half precision hides too much to list each fault."""
    if trial["outcome"] in ("not_built", "misplaced", "missed"):
        return True
    if float(trial["excess"]) > 1 and trial["verdict"] == "pass":
        return True
    return trial["outcome"] == "hidden" and trial["structural"] and candidate != "emulated:fp16"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "-"


def _miss(name: str, candidate: str, trial: Trial) -> str:
    if trial["outcome"] == "not_built":
        return f"- {name}, `{candidate}`, could not run: {trial['description']}: {trial['note']}\n"
    return (
        f"- {name}, `{candidate}`, {trial['outcome']}, verdict {trial['verdict']}: "
        f"{trial['description']} (at "
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
