"""Files written so that a crash leaves the old one or the new one, and folders of our own."""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from .errors import UsageError


def write_atomically(path: Path, data: bytes | str) -> Path:
    """Write to a temporary name beside `path`, sync, rename."""
    # A lone surrogate (from a prompt that is not UTF-8) is escaped as JSON would, and read back.
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def writable_folder(folder: str | Path) -> Path:
    """Make `folder` and prove that a file can be written there, before hours of work are spent."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path, prefix=".driftwalk."):
            pass
    except OSError as error:
        raise UsageError(
            f"Cannot write reports to {str(path)!r}: {error.strerror or error}. "
            "Name another folder."
        ) from None
    return path


_owners: dict[Path, int] = {}
"""Each private folder that is still there, and the process that made it: a fork owns none."""


def private_folder(beside: Path | None) -> Path:
    """A new folder below `beside`, or in the system's temporary folder; OSError where none can be.

    Known to this process alone. Its name starts with a dot; it goes with `release`, or with the
    process.
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


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: str | Path, most: float = math.inf) -> Any:
    """What a JSON file says; one that is none, or has more bytes than `most`, is the caller's
    mistake, and said so."""
    at = Path(path)
    try:
        if (size := at.stat().st_size) > most:
            raise UsageError(f"{str(path)!r} has {size} bytes, more than such a file needs.")
        return json.loads(at.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is not JSON: {error}.") from None
