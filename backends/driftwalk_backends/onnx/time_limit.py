"""An end to an export that hangs.

In the main thread a timer of the operating system interrupts whatever Python runs or waits for; in
another thread, and on Windows, Python is told to raise between two of its own instructions. Either
way a single call of compiled code that never returns is not ended: only a process of its own, which
a user can end, helps there.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeIsUpError(BaseException):
    """Not an `Exception`: exporters try several ways and catch all that one of them raises."""


@contextmanager
def time_limit(seconds: int | None) -> Iterator[None]:
    """Raise `TimeIsUpError` inside the block once it has run for so long; None: never."""
    if seconds is None:
        yield
    elif _can_be_signalled():
        with _signalled(seconds):
            yield
    else:
        with _told(seconds):
            yield


def _can_be_signalled() -> bool:
    main = threading.current_thread() is threading.main_thread()
    # Somebody else's timer (pytest-timeout has one) is not taken away.
    return main and hasattr(signal, "setitimer") and not any(signal.getitimer(signal.ITIMER_REAL))


@contextmanager
def _signalled(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeIsUpError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _told(seconds: int) -> Iterator[None]:
    thread, lock = threading.get_ident(), threading.Lock()
    done = False

    def stop() -> None:
        with lock:
            if not done:
                raised = ctypes.py_object(TimeIsUpError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            done = True
        timer.cancel()
