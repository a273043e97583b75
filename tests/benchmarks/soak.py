"""A soak with flat memory: resident size over two minutes of repeats. For docs/hwcheck.md.

python tests/benchmarks/soak.py [MINUTES] [DEVICE]
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from statistics import median

import driftwalk


def resident() -> float:
    """MiB of this process, as Linux tells it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
    samples: list[tuple[float, float]] = []
    done = threading.Event()
    start = time.perf_counter()

    def sample() -> None:
        while not done.wait(0.5):
            samples.append((time.perf_counter() - start, resident()))

    threading.Thread(target=sample, daemon=True).start()
    found = driftwalk.hwcheck(device, "soak", minutes=minutes, checks=["load"])
    done.set()
    runs = sum(case.repeats for check in found.devices[0].checks for case in check.cases)
    end = samples[-1][0]
    # Loading and the first run of each dtype are over after a quarter of the time.
    early = median(size for at, size in samples if end / 4 < at < end / 2)
    late = median(size for at, size in samples if at > 3 * end / 4)
    growth = late / early - 1
    sys.stdout.write(
        f"{found.verdict}; {runs} repeats in {end:.0f} s; second quarter {early:.1f} MiB, "
        f"last quarter {late:.1f} MiB: {growth:+.2%} (at most 2 % is flat)\n"
    )
    return 0 if growth < 0.02 and found.ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
