"""Options of a spec that several backends take."""

from __future__ import annotations

from driftwalk.errors import UsageError
from driftwalk.spec import Spec

THREADS_HELP = "number of CPU threads (default: the runtime's own choice)"


def parse_threads(spec: Spec) -> int | None:
    """The `threads` option as a positive number."""
    text = spec.options.get("threads")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"Option threads={text}: expected a whole number, 1 or more.")
    return int(text)
