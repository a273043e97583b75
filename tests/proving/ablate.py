"""What each number of the register does: it is halved and doubled, and sensitive cases asked again.

python -m proving ablate [--cases N] [--workers N] [--only NAME ...]

The sources are copied, one number is changed in the copy, and a process of its own asks the cases
with it. The cases are those of the table in which a verdict stands nearest to its limit, on both
sides, on random weights alone. What comes out differently is the answer; a number whose half and
double change nothing is listed as such.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from . import rows
from .case import Case
from .register import Entry, changed, entries
from .rows import Row

ROOT = Path(__file__).parents[2]
SOURCES = {"harness": "driftwalk", "backends": "driftwalk_backends"}
FACTORS = (0.5, 2.0)
CASES = 48
CHEAP = ("fp32", "bf16", "fp16", "int8", "compare", "set", "generate", "module")
SECONDS = 900.0
Said = dict[str, str]
"""Outcome, cause and module of each case, by its id."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    if options.child:
        return _child(options.ids.read_text("utf-8").split())
    wanted = [one for one in entries() if not options.only or one.name in options.only]
    ids = sensitive(rows.read(options.table), options.cases)
    stored = {(row["name"], row["factor"]): row for row in rows.stored(options.rows)}
    tasks = [(one, f) for one in wanted for f in FACTORS if (one.name, f) not in stored]
    _say(f"{len(wanted)} numbers, {len(ids)} cases, {len(tasks)} runs to do")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        listed = Path(folder) / "ids"
        listed.write_text("\n".join(ids), "utf-8")
        plain = _asked(None, 1.0, listed)
        running = {pool.submit(_asked, one, f, listed): (one, f) for one, f in tasks}
        for count, future in enumerate(as_completed(running), start=1):
            one, factor = running[future]
            row = {"name": one.name, "factor": factor, **_difference(plain, future.result())}
            rows.add(options.rows, [row])
            left = (time.monotonic() - begun) / count * (len(tasks) - count) / 60
            what = f"{one.name} times {factor:g}"
            _say(f"{count}/{len(tasks)} {what}: {row['told']} ({left:.0f} min)")
    made = {(row["name"], row["factor"]): row for row in rows.stored(options.rows)}
    options.page.write_text(page(entries(), made, len(ids)), "utf-8")
    _say(f"wrote {options.page}")
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of numbers; all without any")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", type=Path, default=Path("docs/measurements/proving.tsv"))
    parser.add_argument("--rows", type=Path, default=Path("build/proving/ablated.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("docs/measurements/constants.md"))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ids", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def sensitive(table: Iterable[Row], count: int) -> list[str]:
    """Ids of the cases nearest to a limit: as many that pass as that drift, over all runs."""
    tiny = [row for row in table if not row["id"].startswith("real:")]
    tiny = [row for row in tiny if Case.read(row["id"]).run in CHEAP and row["used"]]
    below = [row for row in tiny if row["verdict"] == "pass"]
    above = [row for row in tiny if row["verdict"] == "drift"]
    below.sort(key=lambda row: (-float(row["used"]), row["id"]))
    above.sort(key=lambda row: (float(row["used"]), row["id"]))
    return [row["id"] for some in (below, above) for row in _spread(some, count // 2)]


def _spread(some: Sequence[Row], count: int) -> list[Row]:
    """The first of each run and family in turn, so that no family takes all the places."""
    places: dict[tuple[str, str], int] = {}
    ranked = []
    for row in some:
        case = Case.read(row["id"])
        key = (case.run, case.family)
        places[key] = places.get(key, 0) + 1
        ranked.append((places[key], len(ranked), row))
    return [row for *_, row in sorted(ranked, key=lambda item: item[:2])[:count]]


def _asked(entry: Entry | None, factor: float, ids: Path) -> Said | str:
    """The cases asked with one number changed, or how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        for room in SOURCES:
            shutil.copytree(ROOT / room, Path(folder) / room, ignore=_without_caches)
        if entry is not None:
            file = Path(folder) / entry.file
            file.write_text(changed(entry, file.read_text("utf-8"), factor), "utf-8")
        paths = [str(Path(folder) / room) for room in SOURCES]
        paths += [str(ROOT / "reports"), str(ROOT / "tests")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "DRIFTWALK_CACHE": str(Path(folder) / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        words = [sys.executable, "-m", "proving.ablate", "--child", "--ids", str(ids)]
        try:
            ran = subprocess.run(
                words,
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "still running"
        lines = ran.stdout.splitlines()
        if ran.returncode or not lines:
            return (ran.stderr.strip() or "no output").splitlines()[-1][:200]
        told: Said = json.loads(lines[-1])
        return told


def _without_caches(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def _child(ids: Sequence[str]) -> int:
    """Ask the cases, in this process, one after the other."""
    import torch

    from .asking import Job, rows_of
    from .subjects import tiny

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    subjects = {one.name: one for one in tiny()}
    said: Said = {}
    for name in ids:
        case = Case.read(name)
        subject = subjects[case.subject]
        (row,) = rows_of(Job((case,), 0, peers=False), subject.make().eval(), subject.inputs())
        said[name] = f"{row['outcome']} {row.get('cause', '')} {row.get('culprit', '')}".strip()
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    return 0


def _difference(plain: Said | str, other: Said | str) -> Row:
    """Which cases come out differently, and the first of them in words."""
    if isinstance(plain, str):
        raise SystemExit(f"The cases could not be asked at all: {plain}")
    if isinstance(other, str):
        return {"changed": len(plain), "told": f"it does not run: {other}", "cases": []}
    moved = [name for name in plain if plain[name] != other.get(name)]
    wrong = [name for name in moved if other[name].split()[0] not in ("right", "placed")]
    first = (wrong or moved or [""])[0]
    told = f"{first}: {plain[first]} → {other[first]}" if first else "nothing"
    return {"changed": len(moved), "wrong": len(wrong), "told": told, "cases": moved}


def page(listed: Sequence[Entry], made: dict[tuple[str, float], Row], count: int) -> str:
    """One row a number: what it is, and what its half and its double change."""
    idle = [
        one
        for one in listed
        if not any(made.get((one.name, f), {}).get("changed", 1) for f in FACTORS)
    ]
    lines = [
        "# The register of constants",
        "",
        "Every number that a verdict or a cause depends on, and that somebody chose. Each was",
        f"halved and doubled, and {count} cases asked again that stand nearest to a limit on",
        "random weights (`tox -e proving -- ablate`). A changed case has another outcome, cause or",
        "part.",
        f"**{len(idle)} of {len(listed)} numbers change no case**, neither halved nor doubled.",
    ]
    for wing in dict.fromkeys(one.wing for one in listed):
        lines += [
            "",
            f"## {wing}",
            "",
            "| number | value | what it is | halved | doubled | margin | set by |",
        ]
        lines += ["|---|---|---|--:|--:|---|---|"]
        lines += [_line(one, made) for one in listed if one.wing == wing]
    lines += ["", "## Those that change no case", "", ", ".join(f"`{one.name}`" for one in idle)]
    return "\n".join(lines) + "\n"


def _line(one: Entry, made: dict[tuple[str, float], Row]) -> str:
    half, double = (made.get((one.name, factor), {}) for factor in FACTORS)
    counts = [str(row.get("changed", "-")) for row in (half, double)]
    some = [row for row in (half, double) if row.get("changed")]
    margin = "below 2" if some else "above 2"
    first = next((row["told"] for row in some), "")
    words = " ".join(one.words.split())
    cells = (f"`{one.name}`", f"`{one.value}`", words, *counts, margin, first)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
