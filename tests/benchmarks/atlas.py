"""The atlas: one class of every architecture of transformers on every backend, and what drifts.

    python tests/benchmarks/atlas.py --rows FILE [--page docs/atlas.md] [GLOB ...]

A class and a candidate have a process of their own with a limit of time and memory, and a row as
soon as it is there; a run that was stopped goes on where it was. Backends that want an environment
of their own are run there with the same file: `--candidates executorch`. On a Ray cluster
(`--ray auto`) its nodes take the work; driftwalk and its tests must be there. Architectures come in
an order that has nothing to do with their names: a run that is stopped early is a sample.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
COLUMNS = (
    "torch,compile=inductor",
    "onnxruntime",
    "onnxruntime,exporter=transformers",
    "openvino",
    "executorch",
    "emulated:bf16",
)
SECONDS = 240.0
PACKAGES = ("torch", "transformers", "onnxruntime", "onnx", "onnxscript", "openvino", "executorch")
FRESH = {"onnxruntime": ",cache=off", "openvino": ",cache=off", "executorch": ",cache=off"}
"""Tiny models are never met again: what is made of them is not kept."""
Row = dict[str, Any]
Asked = tuple[str, str]
"""A class, as `folder.Class`, and a candidate."""


def main() -> int:
    options = _options()
    os.environ |= {"HF_HUB_OFFLINE": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    from zoo import run as zoo

    known = _prepared()
    rows = {(row["name"], row["candidate"]): row for row in zoo.stored(options.rows)}
    names = [name for name in one_of_each(known) if zoo.asked(name, options.names)]
    wanted = [(name, spec) for name in names for spec in options.candidates]
    waiting = [asked for asked in wanted if asked not in rows][: options.most]
    _say(f"{len(known)} classes in {len(names)} architectures; {len(waiting)} runs to do")
    run = in_ray(options.ray) if options.ray else here(known, options.workers)
    begun = time.monotonic()
    for count, row in enumerate(run(waiting, options.seconds), start=1):
        rows[row["name"], row["candidate"]] = row
        with options.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        left = (time.monotonic() - begun) / count * (len(waiting) - count) / 60
        said = f"{row['verdict']} {row.get('root', '')} {row.get('reason', '')}"[:150]
        _say(f"{count}/{len(waiting)} {row['name']} {row['candidate']}: {said} ({left:.0f} min)")
    if options.page:
        import atlas_page

        atlas_page.write([*rows.values()], options.page)
        _say(f"wrote {options.page} and {options.page.with_suffix('.html')}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="globs of folder.Class; all without any")
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines; kept between runs")
    parser.add_argument("--page", type=Path, help="the Markdown page to write, and HTML beside it")
    parser.add_argument("--candidates", nargs="+", default=COLUMNS)
    parser.add_argument("--most", type=int, default=100_000, help="runs to do this time")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for one run")
    parser.add_argument("--ray", help="the address of a Ray cluster, or auto")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {text}\n")
    sys.stderr.flush()


def _prepared() -> dict[str, Any]:
    """All classes; what processes are split off from has imported what they need."""
    import torch
    import transformers

    from zoo import check, every

    del check
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    return every.classes()


def one_of_each(names: Iterable[str]) -> list[str]:
    """The class of every folder that has most to say: a model with a head, where there is one."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(name.partition(".")[0], []).append(name)
    heads = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model")

    def first(found: list[str]) -> str:
        return next((n for head in heads for n in found if n.endswith(head)), found[0])

    return sorted(map(first, folders.values()), key=lambda name: zlib.crc32(name.encode()))


Run = Callable[[list[Asked], float], Iterator[Row]]


def here(known: dict[str, Any], workers: int) -> Run:
    """Processes of this machine, so many side by side."""

    def run(waiting: list[Asked], seconds: float) -> Iterator[Row]:
        with ThreadPoolExecutor(workers) as pool:
            jobs = [pool.submit(one, name, known[name], spec, seconds) for name, spec in waiting]
            for job in as_completed(jobs):
                yield job.result()

    return run


def in_ray(address: str) -> Run:
    """Tasks of a Ray cluster; each node finds the classes by itself."""
    import ray

    ray.init(address)

    @ray.remote(max_calls=20)
    def task(name: str, spec: str, seconds: float) -> Row:
        from zoo import every

        kind = every.classes([name.partition(".")[0]])[name]
        return one(name, kind, spec, seconds)

    def run(waiting: list[Asked], seconds: float) -> Iterator[Row]:
        left = [task.remote(name, spec, seconds) for name, spec in waiting]
        while left:
            done, left = ray.wait(left)
            yield ray.get(done[0])

    return run


def one(name: str, kind: Any, spec: str, seconds: float) -> Row:
    """One run, in a process that ends with it."""
    from driftwalk_backends.fingerprint import versions
    from zoo.run import in_a_process

    row = in_a_process(name, kind, (spec,), seconds, make=_made)
    if "died" in row:
        row = {"name": name, "verdict": "died", "reason": row["died"]}
    known = versions(*PACKAGES)
    return row | {"candidate": spec, "versions": known, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def _made(name: str, kind: Any, specs: tuple[str, ...]) -> Row:
    from driftwalk.errors import DriftwalkError
    from zoo.check import runnable
    from zoo.every import MOST_SECONDS, NotBuiltError

    row: Row = {"name": name, "seconds": {}}
    try:
        model, probe = runnable(row, kind, MOST_SECONDS)
    except NotBuiltError as error:
        return row | {"verdict": "not built", "reason": str(error)[:300]}
    if isinstance(probe, DriftwalkError):
        return row | {"verdict": "not run", "reason": str(probe)[:300]}
    begun = time.perf_counter()
    row |= _verdict(model, specs[0], probe)
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def _verdict(model: Any, spec: str, probe: Any) -> Row:
    import driftwalk
    from driftwalk.errors import BackendError, BackendUnavailable, DriftwalkError

    given = spec + FRESH.get(spec.partition(",")[0], "")
    try:
        report = driftwalk.verify(model, given, probe=probe)
    except BackendUnavailable as error:
        return {"verdict": "not here", "reason": str(error)[:300]}
    except BackendError as error:
        return {"verdict": "not exported", "reason": str(error)[:300]}
    except DriftwalkError as error:
        return {"verdict": "refused", "reason": f"{type(error).__name__}: {error}"[:300]}
    except Exception as error:
        return {"verdict": "crash", "reason": f"{type(error).__name__}: {error}"[:300]}
    root, first, culprit = report.root_cause, report.first_divergence, report.culprit
    worst = max((one.tolerance.needed for one in report.layers if one.tolerance), default=0.0)
    return {
        "verdict": report.verdict,
        "points": report.coverage.points,
        "compared": report.coverage.compared,
        "used": worst,
        "first": first.point.name if first else "",
        "root": root.point.name if root else "",
        "culprit": culprit.module if culprit else "",
        "at_fault": report.at_fault or "",
        "reason": report.reason[:300],
        "notes": [note[:300] for note in report.notes] if report.verdict != "pass" else [],
    }


if __name__ == "__main__":
    sys.exit(main())
