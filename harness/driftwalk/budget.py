"""A budget of the host's memory: sizes as people write them, and a watcher that keeps to one.

What counts is the anonymous resident memory of this process (`RssAnon`): the pages that it wrote
itself, Python and libraries included. Files that are mapped do not count.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread, get_ident

from .errors import BudgetError, UsageError


@dataclass(frozen=True)
class Needs:
    """What runs of a model take on a probe beside its weights, as one of them has shown."""

    states: tuple[int, ...]
    """Elements of each state of a trace, the largest first."""
    inside: int
    """Elements of what all modules give together."""
    activations: int
    """Bytes of what is computed between two states, in float64, when it is most."""
    widest: int
    """Elements of the largest piece of a weight that is cast at a time."""
    chooses: bool = False
    """Whether the model chooses by its own numbers, so that the truth is run on both branches."""


_PAGES = Path("/proc/self/statm")
_UNITS = {"B": 1, **{f"{k}B": 1000**n for n, k in enumerate("KMGT", 1)}}
_UNITS |= {f"{k}IB": 1024**n for n, k in enumerate("KMGT", 1)}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,6})?)\s*([KMGT]?I?B)?\s*", re.IGNORECASE)

_INTERVAL = 0.01
"""Seconds from one look to the next."""
_TIGHT = 0.9
"""Of the budget: from here on what was freed is given back to the system ..."""
_TRIM_EVERY = 0.5
"""... once in so many seconds."""
_AGAIN = 10.0
"""Seconds after which a run that did not stop is stopped once more."""
_MANY = 1000
"""Operations of Python, by the end of which a stop has been raised."""


def parse_size(given: object, option: str = "budget") -> int:
    """Bytes, as a whole number or as people write them: `8GiB`, `8GB`, `800MiB`."""
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if isinstance(given, int) and not isinstance(given, bool):
        size = given
    elif found is not None and (found[2] or "." not in found[1]):
        whole, _, part = found[1].partition(".")
        unit = _UNITS[(found[2] or "B").upper()]
        size = int(whole) * unit + int(part or 0) * unit // 10 ** len(part)
    else:
        raise UsageError(
            f"{option}={given!r} is no size; write 8GiB, 8GB, 800MiB, or bytes as a whole number."
        )
    if size <= 0:
        raise UsageError(f"{option}={given!r}: expected more than nothing, as in 8GiB.")
    return size


def in_words(size: int) -> str:
    """A size as it can be written, too; rounded up, so that it is never too small."""
    return f"{-(-size // 2**20)}MiB"


def anonymous_memory() -> int:
    """Bytes of anonymous resident memory that this process has now."""
    try:
        _, resident, mapped, *_ = _PAGES.read_text().split()
    except OSError:
        raise UsageError(
            "A budget of memory can be kept on Linux only: here the system does not say (in /proc) "
            "how much anonymous memory a process has."
        ) from None
    return (int(resident) - int(mapped)) * mmap.PAGESIZE


def trim() -> None:
    """Give the system back what was freed: else states keep whole runs' memory from it."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc
        malloc_trim(0)


class _Stop(BaseException):
    """Raised in the thread that runs; no `except Exception` on the way may take it."""


@contextmanager
def kept(budget: int | None) -> Iterator[None]:
    """Do something within a budget, or stop it with a BudgetError; None: there is none.

    A thread looks a hundred times a second. The run is stopped between two operations of Python:
    it can be over the budget by what it writes in a hundredth of a second, or by what the one
    operation takes that is under way, until that has ended. All is cleaned up as after Ctrl-C.
    """
    if budget is None:
        yield
        return
    if (now := anonymous_memory()) >= budget:
        raise UsageError(
            f"A budget of {in_words(budget)} is less than this process takes already, before "
            f"anything is loaded: {in_words(now)}."
        )
    watcher = _Watcher(budget)
    watcher.start()
    try:
        try:
            yield
        finally:
            watcher.end()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not watcher.over:
            raise
        # Whatever the stop was made into on its way, this is the cause.
        raise BudgetError(watcher.sentence) from (None if isinstance(error, _Stop) else error)
    if watcher.over:
        raise BudgetError(watcher.sentence)


class _Watcher(Thread):
    """Looks at the memory of the process, and stops the thread that made it."""

    def __init__(self, budget: int) -> None:
        super().__init__(daemon=True, name="budget")
        self._budget = budget
        self._watched = get_ident()
        self._done = Event()
        self._most = 0

    @property
    def over(self) -> bool:
        return self._most > self._budget

    @property
    def sentence(self) -> str:
        return (
            f"Stopped at {in_words(self._most)} of anonymous memory, which is more than the budget "
            f"of {in_words(self._budget)}. Nothing was written. A larger budget, a shorter probe "
            "(--length, --batch) or fewer candidates at a time may do."
        )

    def run(self) -> None:
        trimmed = stopped = 0.0
        while not self._done.wait(_INTERVAL):
            now, clock = anonymous_memory(), time.monotonic()
            if now > _TIGHT * self._budget and clock - trimmed > _TRIM_EVERY:
                trim()
                now, trimmed = anonymous_memory(), clock
            self._most = max(self._most, now)
            if self.over and (not stopped or clock - stopped > _AGAIN):
                stopped = clock
                _raise_in(self._watched, _Stop)

    def end(self) -> None:
        """Look no more; a stop that was not heeded yet is heeded here.

        It is not taken back: CPython 3.11 would look for it for ever, and a profiler hang.
        """
        while True:
            try:
                self._done.set()
                self.join()
                for _ in range(_MANY):
                    pass
            except _Stop:
                continue
            return


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Have a thread raise an error at its next operation of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
