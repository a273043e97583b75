"""The command line where no framework is: really not installed, or made to look so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "tests" / "data" / "results").glob("*.json"))
HEAVY = ("torch", "transformers", "onnxruntime", "onnx", "onnxscript", "optimum")
BARE = os.environ.get("DRIFTWALK_LIGHT") == "1"
"""Set by `tox -e light`, whose environment has none of them."""

# None in place of a module: importing it fails as if it were not installed.
HIDE = f"import sys; sys.modules.update(dict.fromkeys({HEAVY!r})); "
RUN = "from driftwalk.cli import main; main()"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def python(code: str, *arguments: str, cwd: Path | None = None) -> Outcome:
    """A program of its own: with the installed package where it is bare, else with the sources."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FORCE_COLOR")}
    if not BARE:
        rooms = [str(ROOT / name) for name in ("harness", "backends", "reports")]
        environment["PYTHONPATH"] = os.pathsep.join(rooms)
    flags = ["-I"] if BARE else []
    done = subprocess.run(
        [sys.executable, *flags, "-X", "utf8", "-c", ("" if BARE else HIDE) + code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def driftwalk(*arguments: str, cwd: Path | None = None) -> Outcome:
    done = python(RUN, *arguments, cwd=cwd)
    assert "Traceback" not in done.out + done.err, done.err
    assert "internal error" not in done.err, done.err
    return done
