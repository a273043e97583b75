"""The command line. An entry point: it knows all rooms, and imports them only when needed."""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the app; whatever happens, no traceback reaches a user."""
    # Set before transformers is imported: its chatter is not our output.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a pipe on Windows knows no check mark
    try:
        from .app import app

        app(prog_name="driftwalk")
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted.\n")
        sys.exit(130)
