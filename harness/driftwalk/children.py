"""Processes that end with us, however we end.

Who is killed cannot end its children any more. So a small process of its own, the watch, holds the
other end of a pipe that closes when we are gone, and then ends every group that still runs.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from threading import Lock
from typing import Any, AnyStr

_WATCH = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    change, group = line.split()
    (groups.add if change == "+" else groups.discard)(int(group))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Child(subprocess.Popen[AnyStr]):
    """A process in a session of its own: Ctrl-C is for us, and it ends with all its children."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        super().__init__(words, start_new_session=True, **options)
        _watch.note("+", self.pid)

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None:
            _watch.note("-", self.pid)
        return code

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        _watch.note("-", self.pid)
        return code

    def end(self, how: int = getattr(signal, "SIGKILL", signal.SIGTERM)) -> None:
        """Send a signal to the whole group, also where the process itself has ended."""
        if sys.platform == "win32":  # no groups there
            self.terminate()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, how)


class _Watch:
    """The watch of this process, started with the first child."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0
        self._watched: set[int] = set()
        self._lock = Lock()

    def note(self, change: str, group: int) -> None:
        """A group to watch ("+"), or one that has ended ("-")."""
        if sys.platform == "win32":
            return
        with self._lock:
            if self._owner != os.getpid():  # the first child, or this is a fork of who had one
                self._owner, self._watched = os.getpid(), set()
                self._process = self._start()
            if (group in self._watched) == (change == "+"):
                return
            (self._watched.add if change == "+" else self._watched.discard)(group)
            assert self._process is not None
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # somebody ended the watch; the children run on
                self._process.stdin.write(f"{change} {group}\n")
                self._process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=os.path.abspath(os.sep),
            text=True,
            start_new_session=True,
        )
        atexit.register(_close, process, os.getpid())
        return process


def _close(process: subprocess.Popen[str], owner: int) -> None:
    """We end in order: so does the watch."""
    if os.getpid() == owner and process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()


_watch = _Watch()
