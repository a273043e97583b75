"""One job as a process of its own: it may hang, crash or fill memory, and we go on.

The same few lines run a job here and, inside a Ray worker, on another machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from ...children import Child
from ...errors import UsageError
from .job import Golden

LAST = 2000
"""Characters of what a job said that are kept."""
PROGRAM = (sys.executable, "-m", "driftwalk")
GRACE = 5.0
"""Seconds between asking a process to end and ending it."""


class Process:
    """`python -m driftwalk ...`, with its output in files: a full pipe must not stop a job."""

    def __init__(
        self,
        words: Sequence[str],
        timeout: float,
        folder: str = "",
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._err = tempfile.TemporaryFile()  # noqa: SIM115
        self._started = time.monotonic()
        self._timeout = timeout
        self.timed_out = False
        self._process: Child[bytes] = Child(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            cwd=folder if folder and Path(folder).is_dir() else None,
            env=_environment(),
        )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def poll(self) -> int | None:
        """The exit code, or None while it runs; one that ran too long is ended here."""
        code = self._process.poll()
        if code is None and self.seconds > self._timeout:
            self.timed_out = True
            self.kill()
            code = self._process.wait()
        return code

    def wait(self) -> int:
        """To the end, or to the end of its time."""
        try:
            return self._process.wait(max(0.0, self._timeout - self.seconds))
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.kill()
            return self._process.wait()

    def kill(self) -> None:
        """The whole group: first asked, then made to."""
        self._process.end(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.end()
        self._process.wait()

    def printed(self) -> str:
        """All of stdout: the result."""
        return _text(self._out, None)

    def said(self) -> str:
        """The end of stderr."""
        return _text(self._err, LAST)

    def close(self) -> None:
        self._out.close()
        self._err.close()


def _text(file: IO[bytes], last: int | None) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - last) if last is not None else 0)
    return file.read().decode("utf-8", "replace").strip()


def _environment() -> dict[str, str]:
    """Ours, with the path that makes driftwalk importable, and without a runner that listens."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):  # the fleet speaks for its jobs
        found.pop(name, None)
    return found


def unpacked(golden: Golden, folder: Path) -> Path:
    """Write a golden's files below `folder`, and say what to call it there.

    The names come from another machine, and must not lead out of the folder.
    """
    for name, data in golden.files.items():
        inside = PurePosixPath(name)
        plain = inside.parts and not inside.is_absolute() and ".." not in inside.parts
        if not plain or "\\" in name or ":" in name or "\0" in name:
            raise UsageError(f"A golden has a file named {name!r}, which leads out of its folder.")
        path = folder.joinpath(*inside.parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / next(iter(golden.files)) if golden.single else folder
