"""Threads for numpy and compiled code, which release the interpreter's lock while they compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Lock, local
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
Found = TypeVar("Found")

_MOST = 16


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS or Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def workers() -> int:
    """As many threads as there are cores for this process, within reason."""
    return min(_MOST, cores())


_here = local()
"""Whether this thread is at work on an item already: then it shares out no work of its own."""


def sharers() -> int:
    """How many threads would work on items of this one: it alone, where it is at work on one."""
    return 1 if getattr(_here, "busy", False) else workers()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers(), thread_name_prefix="driftwalk")


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_threads(
    look: Callable[[Item], Found],
    items: Sequence[Item],
    size: Callable[[Item], int] | None = None,
    least: int = 0,
) -> list[Found]:
    """`look` at every item, in order; side by side where there is more than one core.

    The caller's thread works too, and each takes the next item when it is done with one: waking a
    thread costs as much as a small block. By `size` the largest come first, and none is left over
    for the end: one of far more than a thread's share is looked at alone, with all threads for what
    is shared out in it. `least` is the size that items must have on average for threads to
    win anything, since only one of them can be in Python.
    """
    helpers = min(sharers(), len(items)) - 1
    sizes = [size(item) for item in items] if size else []
    if helpers < 1 or sum(sizes) < least * len(items):
        return [look(item) for item in items]
    order = sorted(range(len(items)), key=lambda n: -sizes[n]) if sizes else range(len(items))
    alone = [n for n in order if sizes and sizes[n] * (helpers + 1) > 1.5 * sum(sizes)]
    found: dict[int, Found] = {number: look(items[number]) for number in alone}
    numbers, lock = iter([n for n in order if n not in found]), Lock()

    def take() -> int | None:
        with lock:
            return next(numbers, None)

    def work() -> None:
        _here.busy = True
        try:
            with np.errstate(all="ignore"):  # the caller's setting does not come along
                while (number := take()) is not None:
                    found[number] = look(items[number])
        finally:
            _here.busy = False

    others = [_pool().submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()
    return [found[number] for number in range(len(items))]
