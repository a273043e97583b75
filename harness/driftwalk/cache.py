"""A folder cache on disk: atomic, checked on every use, bounded. A damaged entry is made anew."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .files import sha256_of

BUDGET = 8 << 30
"""Bytes kept at most; the least recently used entries go first."""

_MANIFEST = "cache.json"
_STALE_SECONDS = 24 * 3600


def default_root() -> Path:
    """`$DRIFTWALK_CACHE`, else the user's cache folder."""
    if given := os.environ.get("DRIFTWALK_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "driftwalk"


def key_of(*parts: str) -> str:
    """One key from many strings; no two lists of parts share one."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


class FolderCache:
    """Folders of files, each made once by a function and found again by its key."""

    def __init__(self, name: str, root: Path | None = None, budget: int = BUDGET) -> None:
        self._root = (root or default_root()) / name
        self._budget = budget

    def get(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder for `key`; made, or made again, where it is lacking or damaged."""
        entry = self._root / key
        if _intact(entry):
            with contextlib.suppress(OSError):
                os.utime(entry)
            return entry
        self._root.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=self._root, prefix=".making-"))
        try:
            make(scratch)
            manifest = {file.name: sha256_of(file) for file in sorted(scratch.iterdir())}
            (scratch / _MANIFEST).write_text(json.dumps(manifest))
            shutil.rmtree(entry, ignore_errors=True)
            try:
                os.replace(scratch, entry)
            except OSError:
                if not _intact(entry):  # not simply made by another process meanwhile
                    raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self._trim(keep=entry)
        return entry

    def _trim(self, keep: Path) -> None:
        """Drop left-over scratch folders, then the least recently used entries over the budget."""
        used = []
        for folder in self._root.iterdir():
            with contextlib.suppress(OSError):
                age = folder.stat().st_mtime
                if folder.name.startswith(".making-"):
                    if time.time() - age > _STALE_SECONDS:
                        shutil.rmtree(folder, ignore_errors=True)
                elif folder.is_dir():
                    size = sum(file.stat().st_size for file in folder.iterdir())
                    used.append((folder != keep, -age, size, folder))
        total = 0
        for _, _, size, folder in sorted(used, key=lambda item: item[:2]):
            total += size
            if total > self._budget and folder != keep:
                shutil.rmtree(folder, ignore_errors=True)


def _intact(entry: Path) -> bool:
    """Whether every file of an entry is there with the bytes it was stored with."""
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        return bool(manifest) and all(
            sha256_of(entry / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False
