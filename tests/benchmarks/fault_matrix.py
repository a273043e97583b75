"""Runs the self-test on six architectures and three candidates, and prints the fault matrix.

export PYTHONPATH=harness:backends:reports:tests
python3 tests/benchmarks/fault_matrix.py run OUT [MODEL ...] [CANDIDATE ...]
python3 tests/benchmarks/fault_matrix.py table OUT
python3 tests/benchmarks/fault_matrix.py run-trusted OUT [MODEL ...] [CANDIDATE ...]
python3 tests/benchmarks/fault_matrix.py table-trusted OUT

`run` writes one JSON file per model and candidate, so that it can be split and continued; `table`
prints the Markdown that stands in docs/selftest.md. `run-trusted` and `table-trusted` do the same
for faults in what the gate trusts. Exit code 1 where a promise is not kept.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("gpt2", "llama", "bert", "albert", "t5", "vit")
CANDIDATES = {"torch": 88, "emulated:fp16": 88, "onnxruntime": 44}
"""Faults per run; a fault in code costs ONNX Runtime an export."""
TRUSTED = {"torch": 4, "emulated:fp16": 4, "onnxruntime": 2}
"""Faults of each kind in what the gate trusts."""
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
    _run(out, names, candidates, lambda candidate: (CANDIDATES[candidate], 0))


def run_trusted(out: Path, names: tuple[str, ...], candidates: tuple[str, ...]) -> None:
    _run(out, names, candidates, lambda candidate: (1, TRUSTED[candidate]), "trusted-")


def _run(
    out: Path,
    names: tuple[str, ...],
    candidates: tuple[str, ...],
    numbers: Callable[[str], tuple[int, int]],
    prefix: str = "",
) -> None:
    """The self-test of each pair that has no file yet; `numbers` are its faults and its lies."""
    import zoo
    from driftwalk.jsonable import encode
    from driftwalk.tasks.selftest.run import selftest

    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        for candidate in candidates:
            target = out / _file(name, candidate, prefix)
            if target.exists():
                continue
            faults, lies = numbers(candidate)
            given = {"probe": probe(name), "cache": False, "trusted": lies}
            found = selftest(zoo.build(name), candidate, faults, **given)
            failed = len(found.trusted_failures if lies else found.failures)
            document = {"model": name, "result": encode(found), "seconds": found.seconds}
            target.write_text(json.dumps(document, allow_nan=False))
            sys.stderr.write(f"{name} {candidate}: {failed} failures\n")


def _file(name: str, candidate: str, prefix: str = "") -> str:
    return f"{prefix}{name}-{candidate.replace(':', '-')}.json"


def table_trusted(out: Path) -> int:
    """Caught / unverified of all that were told, per kind, model and candidate."""
    found = {
        (name, candidate): json.loads(path.read_text())["result"]
        for name in MODELS
        for candidate in TRUSTED
        if (path := out / _file(name, candidate, "trusted-")).exists()
    }
    results = list(found.values())
    kinds = dict.fromkeys(row["kind"] for result in results for row in result["trusted_kinds"])
    write = sys.stdout.write
    write(f"{_where()}\n\n| candidate | model | {' | '.join(f'`{kind}`' for kind in kinds)} |\n")
    write(f"|---|---|{'---|' * len(kinds)}\n")
    sums = {candidate: dict.fromkeys(kinds, (0, 0, 0)) for candidate in TRUSTED}
    for candidate in TRUSTED:
        for name in MODELS:
            result = found.get((name, candidate))
            if result is None:
                continue
            rows = {row["kind"]: row for row in result["trusted_kinds"]}
            cells = []
            for kind in kinds:
                row = rows.get(kind, {"told": 0, "caught": 0, "unverified": 0})
                numbers = tuple(row[key] for key in ("told", "caught", "unverified"))
                before = sums[candidate][kind]
                sums[candidate][kind] = tuple(a + b for a, b in zip(before, numbers, strict=True))
                cells.append(_trusted_cell(*numbers))
            write(f"| `{candidate}` | {name} | {' | '.join(cells)} |\n")
        cells = [_trusted_cell(*sums[candidate][kind]) for kind in kinds]
        write(f"| `{candidate}` | **all** | {' | '.join(cells)} |\n")
    trials = [(*key, trial) for key, result in found.items() for trial in result["trusted"]]
    bad = [item for item in trials if item[2]["answer"] not in ("caught", "cleared", "unverified")]
    told = sum(trial["answer"] != "not_built" for _, _, trial in trials)
    right = [trial for _, _, trial in trials if trial["wrong"] == "nobody"]
    accused = sum(trial["answer"] == "accused" for trial in right)
    failed = sum(item[2]["answer"] != "not_built" for item in bad)
    write(
        f"\n{told - failed} of {told} were caught or unverified; of {len(right)} runs in which "
        f"only a witness was wrong, {accused} accused a side.\n"
    )
    for name, candidate, trial in bad:
        write(
            f"- {name}, `{candidate}`, {trial['kind']}, {trial['answer']}: {trial['description']} "
            f"(verdict {trial['verdict']}, at fault {trial['at_fault']}, root cause "
            f"{trial['root_cause']}) {trial['note']}\n"
        )
    return 1 if failed else 0


def _trusted_cell(told: int, caught: int, unverified: int) -> str:
    """`3 + 1 of 4`: caught, unverified, told."""
    return f"{caught} + {unverified} of {told}" if told else "-"


def _where() -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return (
        f"{datetime.datetime.now(datetime.UTC).date()}, {platform.machine()}, {os.cpu_count()} "
        f"cores, Python {platform.python_version()}, {versions}."
    )


Trial = dict[str, Any]


def load(out: Path) -> Iterator[tuple[str, str, list[Trial], float]]:
    for name in MODELS:
        for candidate in CANDIDATES:
            path = out / _file(name, candidate)
            document = json.loads(path.read_text())
            yield name, candidate, document["result"]["trials"], document["seconds"]


def table(out: Path) -> int:
    write = sys.stdout.write
    write(
        f"{_where()} The models are those of "
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
    if what in ("table", "table-trusted"):
        sys.exit((table if what == "table" else table_trusted)(Path(folder)))
    chosen = tuple(item for item in given if item in MODELS) or MODELS
    specs = tuple(item for item in given if item in CANDIDATES) or tuple(CANDIDATES)
    (run_trusted if what == "run-trusted" else run)(Path(folder), chosen, specs)
