"""What every backend must do, as tests that its author runs.

suite.py    the tests
checks.py   what they ask of states and traces
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import BackendConformance as BackendConformance


def __getattr__(name: str) -> Any:
    """Results of it are read without all that makes them."""
    if name != "BackendConformance":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .suite import BackendConformance

    return BackendConformance
