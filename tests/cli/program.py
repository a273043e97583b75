"""Two ways to run the command line: the real program, and the same app without a new process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from processes import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [str(ROOT / name) for name in ("harness", "backends", "reports", "tests")]
REPORT_FILES = ("junit.xml", "layers.csv", "report.html", "result.json", "summary.md")

# Each of these makes typer or rich believe in a terminal, or takes it away.
_ABOUT_TERMINALS = ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "CLICOLOR_FORCE")


@dataclass(frozen=True)
class Outcome:
    """How a run ended and what it said, on both channels."""

    code: int
    out: str
    err: str

    def refused(self, code: int, *words: str) -> None:
        """It failed as promised: the exit code, a message that says it, and nothing else."""
        assert self.code == code, self.err + self.out
        for word in words:
            assert word in self.err, f"{word!r} is not in: {self.err}"
        assert self.out == "", "stdout is for data"
        assert "Traceback" not in self.err
        assert "internal error" not in self.err


def environment(**changed: str) -> dict[str, str]:
    """The environment for a process that finds the packages, installed or not."""
    kept = {key: value for key, value in os.environ.items() if key not in _ABOUT_TERMINALS}
    return kept | {"PYTHONPATH": os.pathsep.join(SOURCES), "COLUMNS": "100"} | changed


def driftwalk(*arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> Outcome:
    """The real program in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "driftwalk", *arguments],
        env=environment(**(env or {})),
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE,
        check=False,
        **options,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def invoke(*arguments: str) -> Outcome:
    """The same commands in this process: torch is imported once for many runs."""
    from driftwalk.cli.app import app

    done = CliRunner().invoke(app, list(arguments), prog_name="driftwalk")
    return Outcome(done.exit_code, done.stdout, done.stderr)
