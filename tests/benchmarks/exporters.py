"""Driftwalk's own export beside transformers' exporter: one class of every model folder, made tiny.

python tests/benchmarks/exporters.py --rows FILE [--most 100] [--seconds 240] [GLOB ...]

A class has a process of its own, and a row as soon as it is there; a run that was stopped goes on
where it was. Folders come in an order that has nothing to do with their names, so that a run that
is stopped early is a sample. Prints the table of docs/onnx.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
OURS, THEIRS = "onnxruntime", "onnxruntime,exporter=transformers"
SECONDS, EXPORT_SECONDS = 240.0, 90
Row = dict[str, Any]


def main() -> int:
    options = _options()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    from zoo import check, every, run

    del check  # read before processes are split off, once for all of them
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    known = every.classes()
    names = [name for name in one_of_each(known) if _asked(name, options.names)]
    rows = run.read(options.rows)
    waiting = [name for name in names if name not in rows][: options.most]
    _say(f"{len(known)} classes in {len(names)} folders, {len(waiting)} to do")
    for count, name in enumerate(waiting, start=1):
        specs = (OURS, THEIRS)
        row = run.in_a_process(name, known[name], specs, options.seconds, make=both)
        rows[name] = row
        with options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        _say(f"{count}/{len(waiting)} {name}: {outcome(row, OURS)} | {outcome(row, THEIRS)}")
    sys.stdout.write(page([rows[name] for name in names if name in rows]))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="globs of folder.Class; all without any")
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; kept between runs")
    parser.add_argument("--most", type=int, default=10_000, help="classes to do in this run")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one class")
    return parser.parse_args()


def _asked(name: str, globs: list[str]) -> bool:
    return not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()


def one_of_each(names: Iterable[str]) -> list[str]:
    """The first class of every folder, folders in an order of their own."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(name.partition(".")[0], name)
    return sorted(first.values(), key=lambda name: zlib.crc32(name.encode()))


def both(name: str, kind: Any, specs: tuple[str, ...]) -> Row:
    """What verify says of each exporter's graph of a class."""
    from driftwalk.errors import DriftwalkError
    from zoo.check import runnable
    from zoo.every import MOST_SECONDS, NotBuiltError

    row: Row = {"name": name, "seconds": {}}
    try:
        model, probe = runnable(row, kind, MOST_SECONDS)
    except NotBuiltError as error:
        return row | {"reason": str(error)}
    if isinstance(probe, DriftwalkError):
        return row | {"reason": str(probe)}
    for spec in specs:
        begun = time.perf_counter()
        row[spec] = verdict(model, f"{spec},export_limit={EXPORT_SECONDS},cache=off", probe)
        row["seconds"][spec] = round(time.perf_counter() - begun, 1)
    return row


def verdict(model: Any, spec: str, probe: Any) -> Row:
    import driftwalk
    from driftwalk.errors import DriftwalkError
    from driftwalk_backends.onnx.exporters import ExportFailedError

    try:
        report = driftwalk.verify(model, spec, probe=probe)
    except ExportFailedError as error:
        return {"verdict": "not exported", "reason": str(error)}
    except DriftwalkError as error:
        return {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"}
    except Exception as error:
        return {"verdict": "crash", "reason": f"{type(error).__name__}: {error}"}
    culprit = report.culprit.module if report.culprit else ""
    root = report.root_cause.point.name if report.root_cause else ""
    return {
        "verdict": report.verdict,
        "points": report.coverage.points,
        "compared": report.coverage.compared,
        "missing": list(report.coverage.missing),
        "root": root,
        "culprit": culprit,
        "reason": report.reason,
        "left": [note for note in report.notes if "left changes behind" in note],
    }


def outcome(row: Row, spec: str) -> str:
    found = row.get(spec)
    if found is None:
        return f"not run: {row.get('died') or row.get('reason')}"[:120]
    where = f" at {found['root']} {found['culprit']}" if found.get("root") else ""
    points = f" {found['compared']} of {found['points']}" if "points" in found else ""
    why = f": {found['reason']}" if found.get("reason") and not where else ""
    return f"{found['verdict']}{points}{where}{why}"[:200]


def page(rows: list[Row]) -> str:
    """The table, and every class that is not the same with both or does not pass."""
    run = [row for row in rows if OURS in row and THEIRS in row]
    lines = [f"{len(rows)} classes, {len(run)} of them built and run.", ""]
    kinds = ("pass", "drift", "unverified", "not exported", "refused", "crash")
    lines += ["| | " + " | ".join(kinds) + " | points found |", "|---|" + "--:|" * (len(kinds) + 1)]
    for spec in (OURS, THEIRS):
        counts = Counter(row[spec]["verdict"] for row in run)
        made = [row[spec] for row in run if "points" in row[spec]]
        points = f"{sum(r['compared'] for r in made)} of {sum(r['points'] for r in made)}"
        cells = " | ".join(str(counts[kind]) for kind in kinds)
        lines.append(f"| `{spec}` | {cells} | {points} |")
    lines.append("")
    for row in run:
        if any(row[spec]["verdict"] != "pass" for spec in (OURS, THEIRS)):
            lines.append(f"- {row['name']}: {outcome(row, OURS)} | {outcome(row, THEIRS)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
