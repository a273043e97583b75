"""A folder cache on disk: checked on every use, bounded, and never the reason why a run fails.

Why it is right with any number of processes: an entry is published once, complete, under a name
that is never used again, and whoever uses one works on private names of its bytes. So an entry may
be deleted at any moment, by anybody, and nobody ever reads what another is writing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from .files import private_folder, release
from .workers import in_threads

BUDGET = 8 << 30
"""Bytes kept at most; the least recently used entries go first."""

COPIED = 32 << 20
"""Files up to this size are copied for their user; larger ones get a second name (a hard link)."""

_TOGETHER = 1 << 22
"""Bytes of a file that a thread reads at a time."""

_MANIFEST = "cache.json"
_STALE_SECONDS = 7 * 24 * 3600
"""No run takes longer: what a private folder of this age belonged to was killed."""

_UNREADABLE = (OSError, ValueError, AttributeError, TypeError)
"""What is raised by reading an entry that is gone, or garbage."""

_NO_ROOM = tuple(
    os.strerror(number)
    for number in (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        *(errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    )
)
"""What a disk says that takes nothing more, in the words that any library passes on."""


def default_root() -> Path:
    """`$DRIFTWALK_CACHE`, else the user's cache folder."""
    if given := os.environ.get("DRIFTWALK_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "driftwalk"


def key_of(*parts: str) -> str:
    """One key from many strings; no two lists of parts share one."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def checksum(path: Path) -> str:
    """What tells a damaged file from the one that was stored: its size, and the CRC of its bytes.

    Nobody who could write the file is kept from writing its checksum, so a hash would tell no more,
    at five times the cost.
    """

    def read(first: int) -> bytes:
        with path.open("rb") as file:
            file.seek(first)
            return file.read(_TOGETHER)

    return _checksum(path.stat().st_size, read)


def _checksum(size: int, read: Callable[[int], bytes | memoryview]) -> str:
    """The CRC of the CRCs of pieces, which threads read side by side."""
    found = in_threads(lambda first: zlib.crc32(read(first)), range(0, size, _TOGETHER))
    return f"{size}:{zlib.crc32(json.dumps(found).encode()):08x}"


def _checksum_of(stored: bytes) -> str:
    view = memoryview(stored)
    return _checksum(len(view), lambda first: view[first : first + _TOGETHER])


class FolderCache:
    """Folders of files, each made once by a function and found again by its key.

    The folders it gives are private to this process: they stay as they are until `release`, or
    until the process ends. Whatever the disk refuses costs time, never an error.
    """

    def __init__(self, name: str, root: Path | None = None, budget: int = BUDGET) -> None:
        self._root = (root or default_root()) / name
        self._budget = budget

    def get(
        self,
        key: str,
        make: Callable[[Path], None],
        believed: Callable[[Path], bool] = lambda _: True,
    ) -> Path:
        """The folder for `key`; made, or made again, where it is lacking, damaged or disbelieved.

        Where nothing can be stored, it is made in a temporary folder. `make` may then be called
        twice: a disk that is full says so only when it is written to.
        """
        if (stored := self.find(key, believed)) is not None:
            return stored
        folder = self._made(make)
        self._publish(key, folder)
        return folder

    def find(self, key: str, believed: Callable[[Path], bool] = lambda _: True) -> Path | None:
        """The folder for `key`, where there is one; what is damaged or disbelieved is removed."""
        for entry in self._entries(key):
            stored = self._borrowed(entry)
            if stored is not None:
                if believed(stored):
                    _mark_used(entry)
                    return stored
                release(stored)
            shutil.rmtree(entry, ignore_errors=True)
        return None

    def has(self, key: str) -> bool:
        """Whether something is stored for `key`; it may be damaged."""
        return bool(self._entries(key))

    def read(
        self,
        key: str,
        believed: Callable[[Mapping[str, bytes]], bool],
        most: int | None = None,
    ) -> Mapping[str, bytes] | None:
        """The contents of the files stored for `key`, by name, for one who needs no files.

        An entry that is damaged or disbelieved is removed; one of more than `most` bytes is left.
        """
        for entry in self._entries(key):
            with contextlib.suppress(*_UNREADABLE):
                checksums = _checksums(entry)
                if most is not None and _size(checksums) > most:
                    continue
                files = {name: (entry / name).read_bytes() for name in checksums}
                intact = all(_checksum_of(files[name]) == checksums[name] for name in files)
                if intact and believed(files):
                    _mark_used(entry)
                    return files
            shutil.rmtree(entry, ignore_errors=True)
        return None

    def store(self, key: str, write: Callable[[Path], None]) -> str:
        """Store what `write` writes; why that could not be done, or nothing."""
        folder = None
        try:
            folder = private_folder(self._root)
            write(folder)
            return self._publish(key, folder)
        except Exception as error:
            if not _is_no_room(error):
                raise
            return _reason(error)
        finally:
            if folder is not None:
                release(folder)
                _unchanged(self._root)

    def _entries(self, key: str) -> list[Path]:
        """All entries for a key, the latest first: two processes may have made one each."""
        with contextlib.suppress(OSError):
            named = [self._root / name for name in _listing(self._root).get(key, ())]
            return sorted(named, key=_last_used, reverse=True)
        return []

    def _borrowed(self, entry: Path) -> Path | None:
        """A private folder with an entry's files, as they were stored; None where one is not."""
        for place in (self._root, None):
            try:
                folder = private_folder(place)
            except OSError:
                continue
            try:
                if _is_intact(entry, copied_to=folder):
                    return folder
            except _UNREADABLE:
                release(folder)  # the entry is gone or garbage, or this place takes no files
                continue
            release(folder)
            return None
        with contextlib.suppress(*_UNREADABLE):
            return entry if _is_intact(entry) else None
        return None

    def _made(self, make: Callable[[Path], None]) -> Path:
        """A private folder as `make` fills it: beside the entries, or where else there is room."""
        try:
            return _filled(self._root, make)
        except Exception as error:
            if not _is_no_room(error):
                raise
        return _filled(None, make)

    def _publish(self, key: str, folder: Path) -> str:
        """Make an entry of a private folder; why that could not be done, or nothing."""
        entry = self._root / f"{key}-{uuid4().hex[:12]}"
        try:
            making = private_folder(self._root)
            try:
                manifest = {}
                for file in sorted(folder.iterdir()):
                    manifest[file.name] = checksum(file)
                    _second_name(file, making / file.name)
                (making / _MANIFEST).write_text(json.dumps(manifest))
                os.rename(making, entry)
            finally:
                release(making)
            _published(self._root, key, entry.name)
            self._trim(entry, _size(manifest))
        except OSError as error:
            return _reason(error)
        return ""

    def _trim(self, keep: Path, added: int) -> None:
        """Drop what killed processes left, then the least recently used entries over the budget.

        All entries are looked at now and then; in between what is `added` is added up.
        """
        stored = _stored.get(self._root)
        if stored is not None and stored.count < _LOOKED_AT_EVERY:
            stored.count, stored.size = stored.count + 1, stored.size + added
            if stored.size <= self._budget:
                return
        used = []
        for folder in self._root.iterdir():
            with contextlib.suppress(OSError):
                age = folder.stat().st_mtime
                if folder.name.startswith("."):
                    if time.time() - age > _STALE_SECONDS:
                        shutil.rmtree(folder, ignore_errors=True)
                elif folder.is_dir():
                    size = sum(file.stat().st_size for file in folder.iterdir())
                    used.append((folder != keep, -age, size, folder))
        # Of many entries some more go, or all would be looked at again for the next.
        most = self._budget if len(used) < _LOOKED_AT_EVERY else self._budget * 15 // 16
        total = left = 0
        for _, _, size, folder in sorted(used, key=lambda item: item[:2]):
            total += size
            if total > most and folder != keep:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                left += size
        _stored[self._root] = _Stored(left)


_LOOKED_AT_EVERY = 256


@dataclass
class _Stored:
    """What a cache holds, as far as this process knows."""

    size: int
    count: int = 0
    """Entries that were added since all were looked at."""


_stored: dict[Path, _Stored] = {}
_listings: dict[Path, tuple[int, dict[str, list[str]]]] = {}
"""Names of entries by their keys, and the time of the folder that they were read from: a cache of a
hundred thousand entries is not read anew for each of them. What another process adds in the same
instant is found later, or made twice."""


def _listing(root: Path) -> dict[str, list[str]]:
    time_of, known = _listings.get(root, (-1, {}))
    changed = root.stat().st_mtime_ns
    if time_of != changed:
        known = {}
        for name in os.listdir(root):
            known.setdefault(name.rpartition("-")[0], []).append(name)
        _listings[root] = changed, known
    return known


def _published(root: Path, key: str, name: str) -> None:
    """An entry was added by this process."""
    if root in _listings:
        _listings[root][1].setdefault(key, []).append(name)
        _unchanged(root)


def _unchanged(root: Path) -> None:
    """What this process did beside the entries of a folder is no reason to read it anew."""
    with contextlib.suppress(OSError, KeyError):
        _listings[root] = root.stat().st_mtime_ns, _listings[root][1]


def _size(checksums: Mapping[str, str]) -> int:
    """Bytes of all files of an entry, as its checksums say."""
    return sum(int(one.partition(":")[0]) for one in checksums.values())


def _filled(place: Path | None, make: Callable[[Path], None]) -> Path:
    folder = private_folder(place)
    try:
        make(folder)
    except BaseException:
        release(folder)
        raise
    return folder


def _mark_used(entry: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(entry)


def _last_used(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _checksums(entry: Path) -> dict[str, str]:
    """By the names of an entry's files; ValueError where it cannot be one."""
    checksums: dict[str, str] = json.loads((entry / _MANIFEST).read_text())
    if not checksums:
        raise ValueError("an entry without files")
    for name in checksums:
        if Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file in a folder")
    return checksums


def _is_intact(entry: Path, copied_to: Path | None = None) -> bool:
    """Whether every file of an entry, or its copy, has the bytes it was stored with."""
    for name, stored in _checksums(entry).items():
        if copied_to is not None:
            _second_name(entry / name, copied_to / name)
        if checksum((copied_to or entry) / name) != stored:
            return False
    return True


def _second_name(source: Path, target: Path) -> None:
    """The same bytes under another name, which outlives the first."""
    if source.stat().st_size > COPIED:
        with contextlib.suppress(OSError):  # not every file system has links, nor between two
            os.link(source, target)
            return
    shutil.copyfile(source, target)


def _is_no_room(error: BaseException | None) -> bool:
    """Whether an error comes of a disk that takes nothing more, however it was passed on."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        error = error.__cause__ or error.__context__
    return any(
        isinstance(one, OSError) or any(words in str(one) for words in _NO_ROOM) for one in seen
    )


def _reason(error: BaseException) -> str:
    """Why something could not be stored, in a few words."""
    text = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [""])[0]
    return str(text)[:200] or type(error).__name__
