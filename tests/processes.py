"""Processes of tests: they can be interrupted, and none is left behind."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any

SPLITTING = Lock()
"""Held while a process is split off: other threads must not do so in the middle of it."""
PATIENCE = 240
"""Seconds that anything may take on a machine that is busy with other work."""


@contextmanager
def started(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which is ended at the end of the test, passed or not.

    Ctrl-C ends it, also where this process ignores it (`nohup`, a background job of a script).
    """
    # Ignored signals stay ignored in a child; those with a handler get their default.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            **options,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            end(process.pid)


def end(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def alive(process: int) -> bool:
    """A child that nobody waits for has ended all the same."""
    try:
        os.kill(process, 0)
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def children(process: int) -> list[int]:
    """Those that a process has started and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == process and alive(int(folder.name)):
            found.append(int(folder.name))
    return found


def eventually(holds: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether something becomes true within the time that a busy machine may take."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def forked(work: Callable[[], Any], seconds: float, memory: int) -> Any:
    """What a function gives in a process split off from this one, or how that ended, as `Ended`.

    It hears and says nothing, may take so many bytes more, and is ended when its time is over.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(there, work, memory))
    with SPLITTING:
        child.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else Ended(f"still running after {seconds:g} s")
    except EOFError:
        child.join(5)
        return Ended(f"the process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()
        here.close()


def _send(pipe: Connection, work: Callable[[], Any], memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    try:
        pipe.send(work())
    except BaseException as error:
        said = (str(error).strip() or "no message").splitlines()[0]
        pipe.send(Ended(f"{type(error).__name__}: {said}"))


@dataclass(frozen=True)
class Ended:
    """Why a process gave nothing."""

    why: str
