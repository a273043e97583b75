"""The proving ground: cases that no rule was made on, asked of driftwalk and of its peers.

python -m proving quick|whole|some|page|show [options]

`quick` draws some cases by `--seed`, `whole` asks all that the seed draws and writes the page,
`some GLOB ...` asks what is named; all go on where they were stopped. `show ID` asks one case
again and prints all that is known of it.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from processes import SPLITTING, Ended, forked

from . import page, plan, rows
from .asking import Job, rows_of
from .case import Case
from .rows import Row
from .subjects import Subject, from_packages, tiny
from .subjects.packages import NotHad, Package, known

SECONDS = 420.0
"""For one job, which is ended then, and whose cases are asked one by one."""
MEMORY = 10 << 30
"""Bytes of address space for one job, beyond what the process has."""
WHAT = {"quick": plan.quick, "whole": plan.whole, "some": plan.some}
AHEAD = 2
"""Jobs that wait for each worker: enough that none is idle, few enough to let subjects go."""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.what == "page":
        return _write(options)
    packages = [one for one in known() if not options.tiny]
    missing = _bring(packages, options.packages)
    subjects = [*tiny(), *from_packages(packages, options.packages)]
    if options.what == "show":
        return _show(options, subjects)
    jobs = WHAT[options.what](subjects, options.seed)
    jobs = [made for job in jobs if (made := _matching(job, options.only))]
    if options.part:
        which, of = map(int, options.part.split("/"))
        jobs = jobs[which - 1 :: of]
    _ask(jobs, {one.name: one for one in subjects}, options)
    if missing:
        _say("These packages could not be had; their rows are missing:")
        for line in missing:
            _say(f"  {line}")
    if options.what == "whole" and not (options.only or options.part):
        _write(options)
    sys.stdout.write(page.summary(_all(options.rows, jobs)))
    return 3 if missing else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", default="quick", choices=(*WHAT, "page", "show"))
    parser.add_argument("only", nargs="*", help="globs of ids: 'real:*/eps*'; all without any")
    parser.add_argument("--rows", type=Path, default=Path("build/proving/rows.jsonl"))
    parser.add_argument("--packages", type=Path, default=Path("build/proving/packages"))
    parser.add_argument("--table", type=Path, default=Path("docs/measurements/proving.tsv"))
    parser.add_argument("--page", type=Path, default=Path("docs/proving.md"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--part", default="", help="2/5: every fifth job, from the second on")
    parser.add_argument("--tiny", action="store_true", help="no package is downloaded")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _matching(job: Job, globs: list[str]) -> Job | None:
    """The cases of a job that are asked for; all without any globs."""
    fits = [one for one in job.cases if any(fnmatch.fnmatch(one.id, name) for name in globs)]
    cases = tuple(fits) if globs else job.cases
    return replace(job, cases=cases) if cases else None


def _bring(packages: list[Package], folder: Path) -> list[str]:
    """Download what is not there yet; what cannot be had is told."""
    missing = []
    for package in packages:
        if not package.is_in(folder):
            _say(f"downloading {package.name} {package.version}")
        try:
            package.bring(folder)
        except NotHad as error:
            missing.append(str(error))
    return missing


def _ask(jobs: list[Job], subjects: Mapping[str, Subject], options: argparse.Namespace) -> None:
    """Ask all jobs whose rows are not there yet, several at a time, subject by subject."""
    known_ids = {row["id"] for row in rows.stored(options.rows)}
    waiting = [job for job in jobs if any(case.id not in known_ids for case in job.cases)]
    order = {name: n for n, name in enumerate(subjects)}
    waiting.sort(key=lambda job: order[job.first.subject])
    _say(f"{len(jobs)} jobs, {len(waiting)} to do")
    begun = time.monotonic()
    for count, (job, made) in enumerate(_made(waiting, subjects, options.workers), start=1):
        rows.add(options.rows, [row for row in made if row["id"] not in known_ids])
        left = (time.monotonic() - begun) / count * (len(waiting) - count) / 60
        told = " ".join(f"{row['id'].split('/')[-2]}:{row['outcome']}" for row in made)
        _say(
            f"{count}/{len(waiting)} {job.first.subject}/{job.first.family} {told} ({left:.0f} min)"
        )


def _made(
    jobs: list[Job], subjects: Mapping[str, Subject], workers: int
) -> Iterator[tuple[Job, list[Row]]]:
    """Rows as they come; a subject is made once, and split off with each of its jobs."""
    running: dict[Future[list[Row]], Job] = {}
    name, made = "", None
    with ThreadPoolExecutor(workers) as pool:
        for job in jobs:
            if job.first.subject != name:
                name = job.first.subject
                with SPLITTING:
                    made = None
                    gc.collect()
                    made = _subject(subjects[name])
            running[pool.submit(_job, job, made)] = job
            while len(running) >= workers + AHEAD:
                yield from _finished(running)
        while running:
            yield from _finished(running)


def _finished(running: dict[Future[list[Row]], Job]) -> Iterator[tuple[Job, list[Row]]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


Made = tuple[nn.Module, Mapping[str, Any]] | str


def _subject(subject: Subject) -> Made:
    """A model and its inputs, or why there is none."""
    try:
        return subject.make().eval(), subject.inputs()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _job(job: Job, made: Made) -> list[Row]:
    """A job in a process of its own; where it ends without an answer, case by case."""
    if isinstance(made, str):
        return [_no_answer(case, made) for case in job.cases]
    told = in_a_process(job, made)
    if isinstance(told, list):
        return told
    if len(job.cases) == 1:
        return [_no_answer(job.first, told)]
    return [row for case in job.cases for row in _job(replace(job, cases=(case,)), made)]


def _no_answer(case: Case, why: str) -> Row:
    return {"id": case.id, "outcome": "broken", "why": why}


def in_a_process(job: Job, made: tuple[nn.Module, Mapping[str, Any]]) -> list[Row] | str:
    """The rows of a job, or how its process ended; its files go with it."""
    with tempfile.TemporaryDirectory(prefix="proving-", ignore_cleanup_errors=True) as folder:

        def work() -> list[Row]:
            tempfile.tempdir = folder
            return rows_of(job, *made)

        told = forked(work, SECONDS, MEMORY)
    return told.why if isinstance(told, Ended) else told


def _all(path: Path, jobs: list[Job]) -> list[Row]:
    wanted = {case.id for job in jobs for case in job.cases}
    return [row for row in rows.stored(path) if row["id"] in wanted]


def _write(options: argparse.Namespace) -> int:
    """The table that is kept, and the page."""
    made = list({row["id"]: row for row in rows.stored(options.rows)}.values())
    counted = [row for row in made if row["outcome"] != "no place"]
    options.table.parent.mkdir(parents=True, exist_ok=True)
    options.table.write_text(rows.compact(counted), encoding="utf-8")
    options.page.write_text(page.page(rows.read(options.table)), encoding="utf-8")
    _say(f"wrote {options.table} and {options.page}")
    return 0


def _show(options: argparse.Namespace, subjects: list[Subject]) -> int:
    """One case again, and all that is known of it."""
    case = Case.read(options.only[0])
    subject = next(one for one in subjects if one.name == case.subject)
    made = _subject(subject)
    told = made if isinstance(made, str) else rows_of(Job((case,), options.seed), *made)
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
