"""Where and when something was made."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from . import __version__
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
        "cores": str(os.cpu_count()),
        "numpy": np.__version__,
    }
