"""Time on a device: its own clock, and waiting for what was queued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def device_clock(device: torch.device) -> Iterator[Callable[[], float | None]]:
    """Times what is queued inside by the device's own clock; ask when the device is done."""
    if device.type != "cuda":
        yield lambda: None
        return
    first, last = (_event() for _ in range(2))
    first.record()
    yield lambda: first.elapsed_time(last) / 1e3
    last.record()


def stamp(device: torch.device) -> Any:
    """Now, by the clock of the device."""
    if device.type != "cuda":
        return time.perf_counter()
    event = _event()
    event.record()
    return event


def between(before: Any, after: Any) -> float:
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
