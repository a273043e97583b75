"""No test can hang: one that takes far longer than any should is stopped, and fails."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LIMIT = 900.0
"""Seconds for a test, and for what is prepared for it, on a machine that is busy."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Fail what is still running then; only waits and Python can be stopped in this way."""
    here = threading.current_thread() is threading.main_thread()
    if not here or not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: object) -> None:
        pytest.fail(f"still running after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


def _stopped() -> Iterator[None]:
    with limited(LIMIT):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    return (yield from _stopped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    return (yield from _stopped())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    return (yield from _stopped())
