"""Inputs in files: arrays of numpy, and what a model's own processor reads, images and sound."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from numpy.lib.format import read_array

from .dtypes import Array
from .errors import ProbeError

PROBE_FILES = (".safetensors", ".npz")
ARRAYS, IMAGES, SOUNDS = (".npy",), (".png", ".jpg", ".jpeg"), (".wav",)
_UNREADABLE = (
    *(OSError, EOFError, ValueError, KeyError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


@dataclass(frozen=True)
class InputFiles:
    """A file for each of some inputs, and the texts that go with them: `--input NAME=FILE`."""

    files: tuple[tuple[str, Path], ...]
    """By the name that the model's forward has for the input; several images make a batch."""
    texts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, path in self.files:
            if path.suffix.lower() not in (*ARRAYS, *IMAGES, *SOUNDS):
                known = ", ".join((*ARRAYS, *IMAGES, *SOUNDS))
                raise ProbeError(f"Input {name!r}: cannot read {path.name!r}; known are {known}.")
        names = [name for name, path in self.files]
        for name, path in self.files:
            if names.count(name) > 1 and path.suffix.lower() in ARRAYS:
                raise ProbeError(f"Input {name!r} is given twice, once as the array {path.name!r}.")

    def of_kind(self, suffixes: tuple[str, ...]) -> tuple[tuple[str, Path], ...]:
        """Those whose names end so."""
        return tuple(item for item in self.files if item[1].suffix.lower() in suffixes)

    @property
    def arrays(self) -> dict[str, Array]:
        """What the files of arrays hold."""
        return {name: read_npy(path) for name, path in self.of_kind(ARRAYS)}


def read_npy(path: Path) -> Array:
    """The array of an .npy file; one of Python objects, which only pickle reads, is refused."""
    data = _read(path)
    if isinstance(data, dict):
        raise ProbeError(f"{str(path)!r} holds several arrays; give it as --probe.")
    return data


def read_npz(path: Path) -> dict[str, Array]:
    """The named arrays of an .npz file; those of Python objects are refused, by name."""
    data = _read(path)
    if not isinstance(data, dict):
        raise ProbeError(f"{str(path)!r} holds one array; give it as --input NAME=FILE.npy.")
    return data


def _read(path: Path) -> Array | dict[str, Array]:
    """Only numbers: numpy's `read_array` takes no pickle unless it is told to."""
    member = ""
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return read_array(file)
            arrays: dict[str, Array] = {}
            with zipfile.ZipFile(file) as archive:
                for member in archive.namelist():
                    with archive.open(member) as one:
                        arrays[member.removesuffix(".npy")] = read_array(one)
            return arrays
    except _UNREADABLE as error:
        part = f"{member.removesuffix('.npy')!r} of " if member else ""
        raise ProbeError(f"Cannot read {part}{str(path)!r}: {_short(error)}.") from None


def _short(error: BaseException) -> str:
    if "Object arrays" in str(error):  # numpy would have one switch pickle on
        return "it holds Python objects, and pickle is never read; save numbers"
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
