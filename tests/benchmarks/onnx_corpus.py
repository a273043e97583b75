"""Every node test of the ONNX backend test corpus as a pair of graphs: false alarms and misses.

PYTHONPATH=harness:backends:reports:tests python3 tests/benchmarks/onnx_corpus.py [EVERY] [FAULTS]

EVERY takes each so-maniest case only (1); FAULTS is how many observable faults are tried in each
(1). A fault is put into an initialiser or an attribute; where none of them shows, an input is
stored in both graphs and changed in one.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

from corpus import Tally, all_cases, read, try_clean, try_faults


def main() -> int:
    every, most = (int(word) for word in (*sys.argv[1:3], "1", "1")[:2])
    warnings.simplefilter("ignore")
    out, tally, start = sys.stdout.write, Tally(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for made in all_cases()[::every]:
            case = read(made)
            if isinstance(case, str):
                tally.counts[f"left out: {case}"] += 1
                continue
            tally.counts["cases"] += 1
            try_clean(case, Path(folder), tally)
            try_faults(case, Path(folder), tally, most)
    for name, count in sorted(tally.counts.items()):
        out(f"{count:6d}  {name}\n")
    out(f"{len(tally.within):6d}  faults inside the tolerance, tried again with a larger one:\n")
    for line in tally.within:
        out(f"        {line}\n")
    out(f"{time.perf_counter() - start:.0f} s; {len(tally.wrong)} wrong\n")
    for line in tally.wrong:
        out(f"        {line}\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
