"""What `driftwalk --help` takes, against the `import typer, rich` that it cannot do without.

    PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/help_time.py

Both are whole processes that take turns, so that a busy machine slows both; the limit is on the
ratio of their medians. A nonzero exit code: it is beyond `MOST`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 15
MOST = 3.0
PROGRAMS = {
    "import typer, rich": ["-c", "import typer, rich"],
    "driftwalk --help": ["-m", "driftwalk", "--help"],
}


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100"},
        check=True,
    )
    return time.perf_counter() - start


def main() -> int:
    for arguments in PROGRAMS.values():
        seconds(arguments)  # what is compiled to bytecode is compiled now
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(ROUNDS):
        for name, arguments in PROGRAMS.items():
            taken[name].append(seconds(arguments))
    for name, samples in taken.items():
        sys.stdout.write(
            f"{name:<20} {statistics.median(samples) * 1e3:6.0f} ms, median of {ROUNDS}\n"
        )
    base, asked = (statistics.median(samples) for samples in taken.values())
    sys.stdout.write(f"ratio {asked / base:.2f}, at most {MOST:.0f}\n")
    return 0 if asked / base < MOST else 1


if __name__ == "__main__":
    sys.exit(main())
