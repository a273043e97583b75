"""What bounds a search: so many runs, and so many minutes."""

from __future__ import annotations

from ..errors import UsageError


def check_bounds(runs: int | None, minutes: float | None, *, least: int) -> None:
    """Refuse bounds that mean nothing; `least` is the smallest number of runs."""
    if runs is not None and runs < least:
        raise UsageError(f"runs={runs} (--runs): expected a whole number, {least} or more.")
    if minutes is not None and not minutes > 0:
        raise UsageError(f"minutes={minutes} (--minutes): expected a number above zero.")
