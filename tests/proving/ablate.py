"""What each number of the register does: it is halved and doubled, and sensitive cases asked again.

python -m proving ablate [--cases N] [--workers N] [--only NAME ...]

The sources are copied, one number is changed in the copy, and a process of its own asks the cases
with it. The cases are those of the table in which a verdict stands nearest to its limit, on both
sides, on random weights alone. What comes out differently is the answer; a number whose half and
double change nothing is listed as such.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from processes import Ended, forked

from . import rows
from .case import Case
from .register import Entry, changed, entries
from .rows import Row

ROOT = Path(__file__).parents[2]
SOURCES = ("harness", "backends", "reports")
FACTORS = (0.5, 2.0)
Task = tuple[Entry, float, list[str]]
"""A number, a factor, and the cases to be asked with it."""
CASES = 16
CHEAP = ("fp32", "bf16", "fp16", "int8", "compare", "set", "generate", "module")
SECONDS, MEMORY = 600.0, 10 << 30


@dataclass(frozen=True)
class Said:
    """Outcome, cause and module of each case, by its id; and which source files were imported."""

    cases: Mapping[str, str]
    files: frozenset[str]


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    _import_frameworks()
    wanted = [one for one in entries() if not options.only or one.name in options.only]
    ids = sensitive(rows.read(options.table), options.cases)
    known = merged(rows.stored(options.rows))
    tasks = [
        (one, factor, left)
        for one in wanted
        for factor in FACTORS
        if (left := [n for n in ids if n not in known.get((one.name, factor), NEVER).asked])
    ]
    _say(f"{len(wanted)} numbers, {len(ids)} cases, {len(tasks)} runs to do")
    if tasks:
        _ask(tasks, options)
    made = merged(rows.stored(options.rows))
    options.page.write_text(page(entries(), made), "utf-8")
    _say(f"wrote {options.page}")
    return 0


def _ask(tasks: list[Task], options: argparse.Namespace) -> None:
    """Run every task, and add its row as soon as it is there."""
    begun = time.monotonic()
    with ThreadPoolExecutor(options.workers) as pool:
        plain = _asked(None, 1.0, list(dict.fromkeys(n for *_, left in tasks for n in left)))
        if isinstance(plain, str):
            raise SystemExit(f"The cases could not be asked at all: {plain}")
        used = [task for task in tasks if _reached(task[0], plain.files)]
        idle = [task for task in tasks if task not in used]
        rows.add(options.rows, [_row(*task, [], "not reached") for task in idle])
        _say(f"{len(idle)} runs are of numbers in files that these cases never import")
        running = {pool.submit(_asked, *task): task for task in used}
        for count, future in enumerate(as_completed(running), start=1):
            task = running[future]
            row = _row(*task, *_difference(plain, future.result(), task[2]))
            rows.add(options.rows, [row])
            left = (time.monotonic() - begun) / count * (len(used) - count) / 60
            what = f"{row['name']} times {row['factor']:g}"
            _say(f"{count}/{len(used)} {what}: {row['told']} ({left:.0f} min)")


def _row(entry: Entry, factor: float, ids: Sequence[str], cases: list[str], told: str) -> Row:
    return {
        "name": entry.name,
        "factor": factor,
        "asked": list(ids),
        "changed": cases,
        "told": told,
    }


@dataclass(frozen=True)
class Effect:
    """What one change of one number did, over all runs."""

    asked: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    told: str = ""
    """Of the first case that came out differently."""


NEVER = Effect()


def merged(stored: Iterable[Row]) -> dict[tuple[str, float], Effect]:
    """All runs of each number and factor together: later ones asked other cases."""
    made: dict[tuple[str, float], Effect] = {}
    for row in stored:
        key = row["name"], row["factor"]
        before = made.get(key, NEVER)
        told = before.told or (row["told"] if row["changed"] else "")
        made[key] = Effect(
            before.asked | set(row["asked"]), before.changed | set(row["changed"]), told
        )
    return made


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of numbers; all without any")
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", type=Path, default=Path("docs/measurements/proving.tsv"))
    parser.add_argument("--rows", type=Path, default=Path("build/proving/ablated.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("docs/measurements/constants.md"))
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _import_frameworks() -> None:
    """What takes long to import, and is the same for all: before processes are split off."""
    import onnx  # noqa: F401
    import torch
    import transformers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()


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


def _asked(entry: Entry | None, factor: float, ids: Sequence[str]) -> Said | str:
    """The cases asked with one number changed, or how the process ended."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for room in SOURCES:
            shutil.copytree(ROOT / room, Path(folder) / room, ignore=_without_caches)
        if entry is not None:
            file = Path(folder) / entry.file
            file.write_text(changed(entry, file.read_text("utf-8"), factor), "utf-8")
        told = forked(partial(_answers, Path(folder), ids), SECONDS, MEMORY)
    return told.why if isinstance(told, Ended) else told


def _reached(entry: Entry, files: frozenset[str]) -> bool:
    """Whether a file that was imported uses a number."""
    word = re.compile(rf"\b{re.escape(entry.name)}\b")
    others = (ROOT / name for name in files if name != entry.file)
    return any(word.search(path.read_text("utf-8")) for path in others)


def _without_caches(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name == "__pycache__"}


def _answers(folder: Path, ids: Sequence[str]) -> Said:
    """Ask the cases of the sources in a folder: this process has imported none of them yet."""
    sys.path[:0] = [str(folder / room) for room in SOURCES]
    tempfile.tempdir = os.environ["DRIFTWALK_CACHE"] = str(folder)
    import driftwalk

    from . import every
    from .asking import Job, rows_of
    from .subjects import tiny

    del every
    assert Path(str(driftwalk.__file__)).is_relative_to(folder), "the sources were imported before"
    subjects = {one.name: one for one in tiny()}
    said: dict[str, str] = {}
    for name in ids:
        case = Case.read(name)
        subject = subjects[case.subject]
        (row,) = rows_of(Job((case,), 0, peers=False), subject.make().eval(), subject.inputs())
        said[name] = f"{row['outcome']} {row.get('cause', '')} {row.get('culprit', '')}".strip()
    imported = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    inside = (Path(name) for name in imported if name.startswith(f"{folder}{os.sep}"))
    return Said(said, frozenset(path.relative_to(folder).as_posix() for path in inside))


def _difference(plain: Said, other: Said | str, ids: Sequence[str]) -> tuple[list[str], str]:
    """Which cases come out differently, and the first of them in words."""
    if isinstance(other, str):
        return list(ids), f"it does not run: {other}"
    before, after = plain.cases, other.cases
    moved = [name for name in ids if before[name] != after.get(name)]
    wrong = [name for name in moved if after[name].split()[0] not in ("right", "placed")]
    first = (wrong or moved or [""])[0]
    return moved, f"{first}: {before[first]} → {after[first]}" if first else "nothing"


def page(listed: Sequence[Entry], made: Mapping[tuple[str, float], Effect]) -> str:
    """One row a number: what it is, and what its half and its double change."""
    count = len({name for effect in made.values() for name in effect.asked})
    idle = [
        one for one in listed if not any(made.get((one.name, f), NEVER).changed for f in FACTORS)
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


def _line(one: Entry, made: Mapping[tuple[str, float], Effect]) -> str:
    half, double = (made.get((one.name, factor), NEVER) for factor in FACTORS)
    counts = [str(len(effect.changed)) if effect.asked else "-" for effect in (half, double)]
    some = [effect for effect in (half, double) if effect.changed]
    margin = "below 2" if some else "above 2"
    words = " ".join(one.words.split())
    first = some[0].told if some else ""
    cells = (f"`{one.name}`", f"`{one.value}`", words, *counts, margin, first)
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
