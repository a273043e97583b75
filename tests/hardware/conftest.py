"""A model so small that hundreds of repeats take seconds, and one report for all renderers."""

from __future__ import annotations

from typing import Any

import pytest

from driftwalk.tasks.hardware import check
from driftwalk.tasks.hardware.result import HardwareReport
from driftwalk.tasks.hardware.work import LEVELS, Level

TINY = Level("quick", 3, 3, 2, 2, 0.2)


@pytest.fixture(scope="session")
def tiny() -> tuple[Any, Any]:
    """A loaded model and its probe."""
    from driftwalk_backends.hardware.model import Size, built_in, default_probe

    size = Size(width=16, layers=3, heads=2, vocabulary=32, batch=1, length=6)
    return built_in(size), default_probe(size)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every level as little as can be."""
    monkeypatch.setitem(LEVELS, "quick", TINY)


@pytest.fixture(scope="session")
def clean() -> HardwareReport:
    """All checks, made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEVELS, "quick", TINY)
        return check(dtypes=["fp64", "fp32"], command="driftwalk hwcheck")


@pytest.fixture(scope="session")
def faulty() -> HardwareReport:
    """One flipped bit in one repeat."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LEVELS, "quick", TINY)
        return check(
            dtypes=["fp32"],
            checks=["repeat"],
            inject="state=layer.2,element=5,bit=3,repeat=1,case=model fp32",
        )
