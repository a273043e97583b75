"""Where and when something was made."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from . import __version__
from .cpu import cpu_name
from .document import Tool


def this_tool() -> Tool:
    return Tool("driftwalk", __version__)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def environment() -> dict[str, str]:
    """The machine, as far as it may explain a number."""
    import numpy as np

    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "numpy": np.__version__,
    }


def head(command: str, model: Mapping[str, str], notes: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of `Document`, as keywords of any kind of result."""
    return {
        "tool": this_tool(),
        "created": now(),
        "command": command,
        "model": model,
        "environment": environment(),
        "notes": tuple(notes),
    }
