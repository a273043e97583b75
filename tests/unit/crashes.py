"""A program that writes traces and is killed: `python crashes.py`, told what to do line by line.

It forks for each line, so that all that a writer needs is imported once:

    FOLDER SEED SIZE calls N     save, and die by SIGKILL before the N-th call to the file system
    FOLDER SEED SIZE time T      save again and again, and die by SIGKILL after T seconds
    FOLDER SEED SIZE limit N     save, where no file may grow beyond N bytes

The answer is a line: `killed`, `saved`, or the error's own words.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time


def save(folder: str, seed: int, size: int) -> None:
    from unit.test_trace_file import trace

    trace(seed, size).save(folder)


def touches_files(called: object) -> bool:
    """Whether a function written in C belongs to os, fcntl or a file."""
    owner = type(getattr(called, "__self__", None)).__module__
    if getattr(called, "__name__", "") in ("fspath", "getpid", "text_encoding", "umask", "stat"):
        return False  # nothing there that could be left half done
    return getattr(called, "__module__", "") in ("posix", "_io", "fcntl") or owner == "_io"


def kill_before_call(number: int) -> None:
    """Every call to the file system is a place where a writer may die."""
    count = 0

    def look(frame: object, event: str, argument: object) -> None:
        nonlocal count
        if event == "c_call" and touches_files(argument):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def kill_after(seconds: float) -> None:
    def wait() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def child(folder: str, seed: int, size: int, how: str, number: float) -> str:
    if how == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(number), int(number)))
    if how == "calls":
        kill_before_call(int(number))
    if how == "time":
        kill_after(number)
    try:
        while True:
            save(folder, seed, size)
            if how != "time":
                return "saved"
            seed += 1
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        sys.setprofile(None)


def main() -> None:
    import unit.test_trace_file  # noqa: F401 - once, before the first fork

    for line in sys.stdin:
        folder, seed, size, how, number = line.rstrip("\n").split("\t")
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            said = child(folder, int(seed), int(size), how, float(number))
            os.write(writer, said.replace("\n", " ").encode())
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(reader) as answer:
            said = answer.read()
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else said, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.path[:0] = os.environ["DRIFTWALK_TEST_PATH"].split(os.pathsep)
    main()
