"""Which browser the tests drive, and what happens where there is none."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)


def find() -> str:
    """The program that DRIFTWALK_CHROMIUM names, or the first browser on the path."""
    named = os.environ.get("DRIFTWALK_CHROMIUM")
    if named and shutil.which(named) is None:
        unavailable(f"DRIFTWALK_CHROMIUM is {named!r}, which is no program")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    return found or unavailable(f"no browser on the path (looked for {', '.join(NAMES)})")


def unavailable(reason: str) -> NoReturn:
    """Skip on somebody's laptop; fail in CI, where a skip would hide everything."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI a browser is required (.ci/run installs one)")
    pytest.skip(reason)
