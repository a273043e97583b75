"""Private folders: known to this process alone, and removed by it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_owners: dict[Path, int] = {}
"""Each folder that is still there, and the process that made it: a forked child owns none."""


def private_folder(beside: Path | None) -> Path:
    """A new folder below `beside`, or in the system's temporary folder; OSError where none can be.

    Its name starts with a dot. It goes with `release`, or with the process.
    """
    if beside is not None:
        beside.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=beside, prefix=".driftwalk-"))
    _owners[folder] = os.getpid()
    return folder


def release(folder: Path) -> None:
    """Remove a private folder; one that is not, or that another process made, is left alone."""
    if _owners.pop(folder, None) == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


@atexit.register
def _release_all() -> None:
    for folder in list(_owners):
        release(folder)
