"""Many processes at one cache: gets and reads of some keys, with damage, deletion, a tiny budget.

PYTHONPATH=harness:tests python3 tests/benchmarks/cache_stress.py [operations] [processes]

Every file of every answer is compared with what belongs there, at once and once more later, when
others have deleted, damaged and replaced the entry it came from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from driftwalk import cache
from driftwalk.files import release

KEYS = [cache.key_of(f"key {number}") for number in range(7)]
FILES = {"weights.bin": 60_000, "graph.bin": 4_000, "names.json": 100}
BUDGET = 300_000
"""Room for some four of the seven keys."""
HELD = 5
"""Answers that each process keeps, and looks at again before it gives them back."""


def content(key: str, name: str) -> bytes:
    """What belongs into a file: no two are alike."""
    piece = hashlib.sha256(f"{key}/{name}".encode()).digest()
    return (piece * (FILES[name] // len(piece) + 1))[: FILES[name]]


def write(key: str, folder: Path) -> None:
    for name in FILES:
        (folder / name).write_bytes(content(key, name))


def is_right(key: str, folder: Path) -> bool:
    return all((folder / name).read_bytes() == content(key, name) for name in FILES)


def damage(chance: random.Random, root: Path, in_place: bool) -> None:
    """Spoil one file of one entry, or delete it, or the entry, or the whole cache."""
    entries = [e for e in root.iterdir() if not e.name.startswith(".")]
    if not entries:
        return
    entry = chance.choice(entries)
    what = chance.choice(("flip", "cut", "garbage", "empty", "file", "entry", "all"))
    if what == "all" and chance.random() < 0.1:
        for one in entries:
            shutil.rmtree(one, ignore_errors=True)
    elif what in ("entry", "all"):
        shutil.rmtree(entry, ignore_errors=True)
    else:
        file = entry / chance.choice((*FILES, "cache.json"))
        if what == "file":
            file.unlink()
            return
        data = bytearray(file.read_bytes())
        if what == "flip" and data:
            data[chance.randrange(len(data))] ^= 1
        data = {
            "cut": data[: len(data) // 2],
            "garbage": bytearray(b"{}"),
            "empty": bytearray(),
        }.get(what, data)
        target = file if in_place else file.with_suffix(".new")
        with target.open("r+b" if in_place else "wb") as opened:
            opened.write(data)
            opened.truncate(len(data))
        if not in_place:
            os.replace(target, file)


def work(root: str, seed: int, operations: int, linked: bool) -> dict[str, int]:
    """One process: what it did, and what went wrong."""
    chance, done = random.Random(seed), Counter[str]()
    if linked:
        cache.COPIED = 0  # as if every file were large
    held: list[tuple[str, Path]] = []

    def look(key: str, folder: Path) -> None:
        try:
            done["wrong answers"] += not is_right(key, folder)
        except OSError:
            done["errors"] += 1
            traceback.print_exc()

    def make(key: str, folder: Path) -> None:
        done["made"] += 1
        write(key, folder)

    for _ in range(operations):
        done["operations"] += 1
        if chance.random() < 0.15:
            done["damaged"] += 1
            with contextlib.suppress(OSError):  # somebody else was at it
                damage(chance, Path(root) / "stress", in_place=not linked)
            continue
        key = chance.choice(KEYS)
        store = cache.FolderCache("stress", Path(root), BUDGET)
        try:
            if chance.random() < 0.3:
                done["reads"] += 1
                found = store.read(key, lambda _: True)
                right = {name: content(key, name) for name in FILES}
                done["found"] += found is not None
                done["wrong answers"] += found is not None and found != right
                continue
            folder = store.get(key, lambda folder, key=key: make(key, folder))
        except Exception:
            done["errors"] += 1
            traceback.print_exc()
            continue
        done["gets"] += 1
        look(key, folder)
        held.append((key, folder))
        if len(held) > HELD:
            old = held.pop(chance.randrange(HELD))
            look(*old)
            release(old[1])
    for key, folder in held:
        look(key, folder)
        release(folder)
    return dict(done)


def stress(operations: int, processes: int, linked: bool = False) -> dict[str, int]:
    """Counts over all processes. With `linked`, files are given hard links, as large ones are."""
    total: Counter[str] = Counter({"errors": 0, "wrong answers": 0})
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="driftwalk-stress-") as root:
        context = multiprocessing.get_context("spawn")
        shares = [
            operations * (n + 1) // processes - operations * n // processes
            for n in range(processes)
        ]
        with context.Pool(processes) as pool:
            jobs = [(root, seed, share, linked) for seed, share in enumerate(shares)]
            for done in pool.starmap(work, jobs, chunksize=1):
                total.update(done)
        left = [p for p in (Path(root) / "stress").iterdir() if p.name.startswith(".")]
        total["left behind"] = len(left)
    total["seconds"] = round(time.perf_counter() - start)
    return dict(total)


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 6
    for linked in (False, True):
        found = stress(operations, processes, linked)
        sys.stdout.write(f"{'linked' if linked else 'copied'}: {json.dumps(found)}\n")
        sys.stdout.flush()
        if found["errors"] or found["wrong answers"]:
            sys.exit(1)


if __name__ == "__main__":
    main()
