"""All of it: every model class of the installed transformers through `check`, one process each.

python -m zoo.run [--rows FILE] [--page docs/zoo.md] [--steps self,bf16] [--every N] [NAME ...]

A row is written as soon as it is there, and a run that was stopped goes on where it was. A class
that hangs is ended after its time, and one that crashes loses its own row only.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from processes import Ended, forked

SECONDS = 180.0
MEMORY = 12.0
"""GiB of memory for one class: one that is not shrunk well must not take the machine."""
Row = dict[str, Any]
Make = Callable[[str, Any, tuple[str, ...]], Row]


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    import transformers

    from . import check, every, table

    del check  # read before processes are split off, once for all of them

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    _say("finding the model classes of transformers", transformers.__version__)
    known = every.classes()
    some = list(known)[options.first :: options.every]
    names = [name for name in some if asked(name, options.names)]
    rows = read(options.rows)
    waiting = [name for name in names if name not in rows]
    _say(f"{len(known)} classes, {len(names)} asked for, {len(waiting)} to do")
    begun = time.monotonic()
    for count, row in enumerate(_rows(waiting, known, options), start=1):
        rows[row["name"]] = row
        with options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        left = (time.monotonic() - begun) / count * (len(waiting) - count)
        _say(
            f"{count}/{len(waiting)} {row['name']}: {table.outcome(row)} ({left / 60:.0f} min left)"
        )
    page = table.page([rows[n] for n in names if n in rows], transformers.__version__)
    if options.page:
        table.write(options.page, page, transformers.__version__)
        _say(f"wrote {options.page}")
    else:
        sys.stdout.write(page)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="globs of folder.Class; all without any")
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; kept between runs")
    parser.add_argument("--page", type=Path, help="the Markdown page to write")
    parser.add_argument("--steps", default="probe,self,bf16,eager,fault")
    parser.add_argument("--every", type=int, default=1, help="only every n-th class")
    parser.add_argument("--first", type=int, default=0, help="begin with that class of all")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one class")
    parser.add_argument("--memory", type=float, default=MEMORY, help="GiB for one class")
    return parser.parse_args(arguments)


def asked(name: str, globs: list[str]) -> bool:
    return not globs or any(fnmatch.fnmatch(name, glob) for glob in globs)


def read(path: Path) -> dict[str, Row]:
    """What is stored, by name."""
    return {row["name"]: row for row in stored(path)}


def stored(path: Path) -> Iterator[Row]:
    """Rows of earlier runs; a line that was cut off is done again."""
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _say(*words: object) -> None:
    sys.stderr.write(" ".join(map(str, words)) + "\n")
    sys.stderr.flush()


def _rows(names: list[str], known: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Row]:
    steps = tuple(options.steps.split(","))

    def one(name: str) -> Row:
        return in_a_process(name, known[name], steps, options.seconds, options.memory)

    with ThreadPoolExecutor(options.workers) as pool:
        for row in as_completed([pool.submit(one, name) for name in names]):
            yield row.result()


def in_a_process(
    name: str,
    kind: Any,
    steps: tuple[str, ...],
    seconds: float,
    memory: float = MEMORY,
    make: Make | None = None,
) -> Row:
    """A row made by a process of its own, which is ended when its time is over."""
    from .check import check

    told = forked(lambda: (make or check)(name, kind, steps), seconds, int(memory * 2**30))
    return {"name": name, "died": told.why} if isinstance(told, Ended) else told


if __name__ == "__main__":
    sys.exit(main())
