"""Timing: backends take turns at plain runs.

run.py           who runs when, and what is made of it
runner.py        a backend, here or in a process of its own
worker.py        that process
timing_stats.py  what timings mean: intervals, and one of four words
result.py        the report, frozen
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import bench as bench


def __getattr__(name: str) -> Any:
    """Results of it are read without all that makes them."""
    if name != "bench":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .run import bench

    return bench
