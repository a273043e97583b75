"""The selftest: known bugs put into copies of a model; does the gate catch them?

run.py      plants each fault and judges it
result.py   the report, frozen
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .run import selftest as selftest


def __getattr__(name: str) -> Any:
    """Results of it are read without all that makes them."""
    if name != "selftest":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .run import selftest

    return selftest
