"""What recording costs over the forward pass and a raw write of the same bytes.

PYTHONPATH=harness:backends:reports python3 tests/benchmarks/record_cost.py [LAYERS LENGTH]

Per round, in turns: one plain run of the model; the bytes of the trace's files written to a new
file and synced; one instrumented run, saved as a trace, with hashes, manifest, syncs and renames.
Each time another name, on the same disk. Medians; ratios are those of each round's times, by the
wall clock and by the processor's, which neighbours on a shared machine disturb less.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from verify_cost import gpt2

import driftwalk
from driftwalk_backends.probes import make_probe
from driftwalk_backends.sources import open_model

SHAPES = ((12, 32), (12, 128))
ROUNDS = 9


def clocked(work: Callable[[], object]) -> tuple[float, float]:
    wall, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - busy


def write_raw(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def measure(layers: int, length: int, folder: Path) -> str:
    model = open_model(gpt2(layers))
    probe = make_probe(model, None, batch=1, length=length)
    backend = driftwalk.backend("torch", model)
    stored = backend.trace(probe).save(folder / "first")
    data = b"".join(path.read_bytes() for path in sorted(stored.iterdir()))
    rounds = []
    for number in range(ROUNDS):
        run = clocked(lambda: backend.run(probe))
        raw = clocked(lambda: write_raw(folder / f"raw{number}", data))  # noqa: B023
        record = clocked(lambda: backend.trace(probe).save(folder / f"trace{number}"))  # noqa: B023
        (folder / f"raw{number}").unlink()
        shutil.rmtree(folder / f"trace{number}")
        rounds.append((run, raw, record))
    wall, busy = ([[time[n] for time in times] for times in rounds] for n in (0, 1))
    run, raw, record = (1e3 * statistics.median(column) for column in zip(*wall, strict=True))
    ratios = [sorted(c / (a + b) for a, b, c in times) for times in (wall, busy)]
    told = [f"{statistics.median(r):.3f} ({r[0]:.2f} to {r[-1]:.2f})" for r in ratios]
    return (
        f"| {layers} | {length} | {len(data) / 1e6:.1f} | {run:.0f} | {raw:.0f} | {record:.0f} | "
        f"{told[0]} | {told[1]} |\n"
    )


def main() -> None:
    wanted = [tuple(map(int, sys.argv[1:3]))] if len(sys.argv) > 2 else SHAPES
    write = sys.stdout.write
    write("| layers | tokens | MB | run, ms | raw write, ms | record, ms | ratio, wall clock | ")
    write("ratio, processor |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
    for layers, length in wanted:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            write(measure(layers, length, Path(folder)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
