"""This machine as a cluster: one process per device, each in a group of its own.

A job may hang, crash or fill memory, and we go on. The same `Process` runs a job here and, inside a
Ray worker, on another machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ...children import Child
from .cluster import Event
from .job import Job, Place

LAST = 2000
"""Characters of what a job said that are kept."""
PROGRAM = (sys.executable, "-m", "driftwalk")
GRACE = 5.0
"""Seconds between asking a process to end and ending it."""
NAP = 0.05


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
        self._timed_out = False
        environment = _environment()
        for name in ("GITHUB_STEP_SUMMARY", "GITHUB_ACTIONS"):  # the fleet speaks for its jobs
            environment.pop(name, None)
        self._process: Child[bytes] = Child(
            [*program, *words],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            cwd=folder if folder and Path(folder).is_dir() else None,
            env=environment,
        )

    def poll(self, seconds: float = 0.0) -> int | None:
        """The exit code; None if it still runs after so long. One past its time is ended here."""
        left = self._timeout - (time.monotonic() - self._started)
        try:
            return self._process.wait(max(0.0, min(seconds, left)))
        except subprocess.TimeoutExpired:
            if seconds < left:
                return None
            self._timed_out = True
            return self.kill()

    def kill(self) -> int:
        """The whole group: first asked, then made to."""
        self._process.end(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.end()
        return self._process.wait()

    def result(self) -> dict[str, Any]:
        """Of a process that has ended: how, and what it left, as an `Event` has it; closes it."""
        try:
            return {
                "ending": "timeout" if self._timed_out else "ended",
                "code": self._process.returncode,
                "out": _text(self._out),
                "err": _text(self._err, LAST),
            }
        finally:
            self.close()

    def close(self) -> None:
        self._out.close()
        self._err.close()


def _text(file: IO[bytes], last: int | None = None) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - last) if last is not None else 0)
    return file.read().decode("utf-8", "replace").strip()


def devices() -> list[str]:
    """The CPU of this machine, then every CUDA device that torch can see.

    Asked in a process that ends: who hands out jobs needs neither torch nor a context on a GPU. A
    machine where that fails has its CPU.
    """
    words = [sys.executable, "-m", "driftwalk_backends.torch_devices"]
    try:
        done = subprocess.run(
            words, env=_environment(), capture_output=True, text=True, timeout=300, check=True
        )
        return [str(name) for name in json.loads(done.stdout)]
    except (OSError, subprocess.SubprocessError, ValueError):
        return ["cpu"]


def _environment() -> dict[str, str]:
    """Ours, with the path that makes driftwalk importable."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class LocalCluster:
    """Processes on this machine; the golden is used where it lies."""

    about = "this machine, in processes"

    def __init__(
        self,
        devices: Sequence[str],
        golden: Path | None = None,
        slots: int = 1,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        node = platform.node() or "localhost"
        self._places = tuple(
            Place(node, device, slot)
            for device in devices
            for slot in range(slots if device == "cpu" else 1)
        )
        self._golden = str(golden.resolve()) if golden is not None else ""
        self._program = program
        self._running: dict[Place, tuple[Job, Process]] = {}

    def places(self) -> Sequence[Place]:
        return self._places

    def start(self, place: Place, job: Job, timeout: float) -> None:
        words = job.command(place, self._golden)
        self._running[place] = (job, Process(words, timeout, job.folder, self._program))

    def wait(self, seconds: float) -> Sequence[Event]:
        until = time.monotonic() + seconds
        while True:
            ended = {p: r for p, r in self._running.items() if r[1].poll() is not None}
            if ended or time.monotonic() >= until:
                for place in ended:
                    del self._running[place]
                return [Event(p, job, **process.result()) for p, (job, process) in ended.items()]
            time.sleep(NAP)

    def abandon(self, place: Place) -> None:
        if place in self._running:
            _, process = self._running.pop(place)
            process.kill()
            process.close()

    def close(self) -> None:
        for place in list(self._running):
            self.abandon(place)
