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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

from .scratch import private_folder, release

BUDGET = 8 << 30
"""Bytes kept at most; the least recently used entries go first."""

COPIED = 32 << 20
"""Files up to this size are copied for their user; larger ones get a second name (a hard link)."""

_MANIFEST = "cache.json"
_STALE_SECONDS = 7 * 24 * 3600
"""No run takes longer: what a private folder of this age belonged to was killed."""

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
    with path.open("rb") as file:
        return _checksum(iter(lambda: file.read(1 << 20), b""))


def _checksum(parts: Iterable[bytes]) -> str:
    found, size = 0, 0
    for part in parts:
        found, size = zlib.crc32(part, found), size + len(part)
    return f"{size}:{found:08x}"


def _always(_: Path) -> bool:
    return True


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
        believed: Callable[[Path], bool] = _always,
    ) -> Path:
        """The folder for `key`; made, or made again, where it is lacking, damaged or disbelieved.

        Where nothing can be stored, it is made in a temporary folder. `make` may then be called
        twice: a disk that is full says so only when it is written to.
        """
        found = self.find(key, believed)
        if found is not None:
            return found
        folder = self._made(make)
        self._publish(key, folder)
        return folder

    def find(self, key: str, believed: Callable[[Path], bool] = _always) -> Path | None:
        """The folder that is stored for `key`; one that is damaged or disbelieved is removed."""
        for entry in self._entries(key):
            folder = self._borrowed(entry)
            if folder is not None:
                if believed(folder):
                    _mark_used(entry)
                    return folder
                release(folder)
            shutil.rmtree(entry, ignore_errors=True)
        return None

    def read(
        self, key: str, believed: Callable[[Mapping[str, bytes]], bool]
    ) -> Mapping[str, bytes] | None:
        """The contents of the files stored for `key`, by name, for one who needs no files.

        An entry that is damaged or disbelieved is removed.
        """
        for entry in self._entries(key):
            with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                found = {name: (entry / name).read_bytes() for name, _ in _manifest(entry)}
                intact = all(_checksum([found[name]]) == known for name, known in _manifest(entry))
                if intact and believed(found):
                    _mark_used(entry)
                    return found
            shutil.rmtree(entry, ignore_errors=True)
        return None

    def store(self, key: str, write: Callable[[Path], None]) -> str:
        """Store what `write` writes; why that could not be done, or nothing."""
        try:
            folder = private_folder(self._root)
        except OSError as error:
            return _reason(error)
        try:
            write(folder)
            return self._publish(key, folder)
        except Exception as error:
            if not _is_no_room(error):
                raise
            return _reason(error)
        finally:
            release(folder)

    def _entries(self, key: str) -> list[Path]:
        """All entries for a key, the latest first: two processes may have made one each."""
        with contextlib.suppress(OSError):
            named = (
                entry for entry in self._root.iterdir() if entry.name.rpartition("-")[0] == key
            )
            return sorted(named, key=_age, reverse=True)
        return []

    def _borrowed(self, entry: Path) -> Path | None:
        """A private folder with an entry's files, as they were stored; None where one is not."""
        for place in (self._root, None):
            try:
                folder = private_folder(place)
            except OSError:
                continue
            try:
                if _is_copied(entry, folder):
                    return folder
            except (OSError, ValueError, AttributeError, TypeError):
                release(folder)  # the entry is gone or garbage, or this place takes no files
                continue
            release(folder)
            return None
        return entry if _is_intact(entry) else None

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
            self._trim(keep=entry)
        except OSError as error:
            return _reason(error)
        return ""

    def _trim(self, keep: Path) -> None:
        """Drop what killed processes left, then the least recently used entries over the budget."""
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
        total = 0
        for _, _, size, folder in sorted(used, key=lambda item: item[:2]):
            total += size
            if total > self._budget and folder != keep:
                shutil.rmtree(folder, ignore_errors=True)


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


def _age(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _manifest(entry: Path) -> Iterator[tuple[str, str]]:
    """The names of an entry's files and their checksums; ValueError where it cannot be one."""
    manifest = json.loads((entry / _MANIFEST).read_text())
    if not manifest:
        raise ValueError("an entry without files")
    for name, known in manifest.items():
        if Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file in a folder")
        yield name, known


def _is_copied(entry: Path, folder: Path) -> bool:
    """Take all files of an entry into a folder; whether each has the bytes it was stored with."""
    for name, known in _manifest(entry):
        _second_name(entry / name, folder / name)
        if checksum(folder / name) != known:
            return False
    return True


def _is_intact(entry: Path) -> bool:
    """Whether every file of an entry is there with the bytes it was stored with."""
    try:
        return all(checksum(entry / name) == known for name, known in _manifest(entry))
    except (OSError, ValueError, AttributeError, TypeError):
        return False


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
    told = getattr(error, "strerror", None) or (str(error).strip().splitlines() or [""])[0]
    return str(told)[:200] or type(error).__name__
