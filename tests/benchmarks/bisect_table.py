"""Fusions of ONNX Runtime that change numbers, as `bisect` names them: the table of docs/bisect.md.

PYTHONPATH=harness:backends:reports:tests python tests/benchmarks/bisect_table.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import driftwalk
from bisect_graphs import FUSIONS, LET_IN


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    cases = {name: (fusion, "") for name, fusion in FUSIONS.items()} | LET_IN
    say("| graph | named | error with it | without | of allowance | runs | s |")
    say("|---|---|--:|--:|--:|--:|--:|")
    for name, (fusion, entry) in cases.items():
        written, inputs = fusion.made()
        spec = f"onnxruntime,config={entry}:1" if entry else "onnxruntime"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            file.write_bytes(written)
            start = time.perf_counter()
            found = driftwalk.bisect(str(file), spec, probe=dict(inputs))
            spent = time.perf_counter() - start
        before, after = found.before, found.after
        assert before is not None
        assert after is not None
        named = [part for cause in found.causes for part in (cause.switch, *cause.together)]
        say(
            f"| {name} | {' and '.join(f'`{part}`' for part in named)} | {before.error:.1e} "
            f"| {after.error:.1e} | {before.used:.2g}, {after.used:.2g} | {found.runs} "
            f"| {spent:.1f} |"
        )


if __name__ == "__main__":
    main()
