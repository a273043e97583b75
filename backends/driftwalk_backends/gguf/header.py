"""What a GGUF file says of itself, read without any trust in it, before anybody else opens it.

    magic, version, number of tensors, number of metadata
    metadata     key, type, value
    tensors      name, sizes (the fastest axis first), type, offset
    padding, and the tensors' numbers

Every count is held against the bytes that are left, every offset and size against the file, and no
memory is taken but for what was found there. Long arrays (a vocabulary) are walked over, not kept.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from driftwalk.errors import ModelError

from .types import GONE, TYPES, BlockType

Value = bool | int | float | str
_Listed = tuple[str, tuple[int, ...], BlockType, int]
"""Name, shape, type and offset of a tensor, as the file has them."""
_SCALARS = {
    **{0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f"},
    **{7: "<?", 10: "<Q", 11: "<q", 12: "<d"},
}
_STRING, _ARRAY, _BOOLEAN = 8, 9, 7
VERSIONS = (2, 3)
MOST_TENSORS = MOST_METADATA = 1 << 16
MOST_IN_ARRAY = 1 << 24
LONGEST_NAME = 63
"""Bytes of a tensor's name: ggml has room for no more."""
LONGEST_KEY = 1 << 10
LONGEST_TEXT = 1 << 24
"""Bytes of one text: chat templates are long, and no vocabulary is one text."""
MOST_AXES = 4
MOST_NUMBERS = 1 << 44
KEPT_OF_ARRAY = 4096
ALIGNMENT = "general.alignment"
ARCHITECTURE = "general.architecture"
PARTS = "split.count"
MERGE = "Put the parts together first: llama-gguf-split --merge FIRST-PART WHOLE."


@dataclass(frozen=True)
class Tensor:
    """One tensor, as the file lists it."""

    name: str
    shape: tuple[int, ...]
    """As numpy and torch have it: the slowest axis first."""
    type: BlockType
    start: int
    """The first of its bytes, in the file."""

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numbers // self.type.numbers * self.type.bytes


@dataclass(frozen=True)
class Header:
    """All but the numbers."""

    path: Path
    version: int
    metadata: Mapping[str, Value | tuple[Value, ...]]
    """Of an array that is long, or of texts, nothing but what `lengths` has."""
    lengths: Mapping[str, int]
    """Of each array."""
    tensors: Mapping[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata[ARCHITECTURE])

    def of_model(self, key: str) -> Value | tuple[Value, ...] | None:
        """What the file says of its architecture's `key`: `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}")


def read_header(path: Path) -> Header:
    """The header of a file; an error that names what is wrong with it, if something is."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError(f"{path.name} is empty: no GGUF file.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _Reader(path, mapped, size).header()
    except OSError as error:
        raise ModelError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None


def shown(name: str) -> str:
    """A name out of a file as it may be printed: no control characters, and not too long."""
    return ascii(name if len(name) <= 80 else f"{name[:77]}...")


class _Reader:
    """Goes through the bytes once, and looks before each step whether there are so many."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path, self._data, self._size = path, data, size
        self._at = 0
        self._metadata: dict[str, Value | tuple[Value, ...]] = {}
        self._lengths: dict[str, int] = {}

    def header(self) -> Header:
        version, tensors, entries = self._preamble()
        for _ in range(entries):
            self._entry()
        self._check_metadata()
        listed = [self._listed() for _ in range(tensors)]
        found = self._placed(listed)
        return Header(self._path, version, self._metadata, self._lengths, found)

    def _preamble(self) -> tuple[int, int, int]:
        if self._data[:4] != b"GGUF":
            raise self._wrong("it does not begin with GGUF, and is no such file")
        self._at = 4
        (version,) = self._unpacked("<I", "its version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise self._wrong("it is for big-endian machines, and this reads little-endian")
            raise self._wrong(f"it is of version {version}; versions 2 and 3 are read")
        tensors, entries = self._unpacked("<QQ", "its counts")
        # A tensor takes 25 bytes of the header at least, an entry 13.
        for what, count, most, least in (
            ("tensors", tensors, MOST_TENSORS, 25),
            ("metadata entries", entries, MOST_METADATA, 13),
        ):
            if count > most or count * least > self._size - self._at:
                raise self._wrong(f"it claims to have {count} {what}, for which it has no room")
        return version, tensors, entries

    def _entry(self) -> None:
        key = self._text("a metadata key", LONGEST_KEY)
        if not key or not _is_printable(key):
            raise self._wrong(f"it has a metadata key {shown(key)}, which is no name")
        if key in self._metadata or key in self._lengths:
            raise self._wrong(f"metadata {shown(key)} stands in it twice")
        (kind,) = self._unpacked("<I", f"metadata {shown(key)}")
        if kind == _ARRAY:
            self._array(key)
        else:
            self._metadata[key] = self._value(key, kind)

    def _value(self, key: str, kind: int) -> Value:
        what = f"metadata {shown(key)}"
        if kind == _STRING:
            return self._text(what, LONGEST_TEXT)
        if kind not in _SCALARS:
            raise self._wrong(f"{what} is of type {kind}, which no GGUF file has")
        if kind == _BOOLEAN:
            (byte,) = self._unpacked("<B", what)
            if byte > 1:
                raise self._wrong(f"{what} is a boolean of value {byte}")
            return bool(byte)
        (value,) = self._unpacked(_SCALARS[kind], what)
        found: Value = value
        return found

    def _array(self, key: str) -> None:
        what = f"metadata {shown(key)}"
        kind, count = self._unpacked("<IQ", what)
        if kind == _ARRAY:
            raise self._wrong(f"{what} is an array of arrays, which llama.cpp does not read")
        if kind != _STRING and kind not in _SCALARS:
            raise self._wrong(f"{what} is an array of type {kind}, which no GGUF file has")
        least = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
        if count > MOST_IN_ARRAY or count * least > self._size - self._at:
            raise self._wrong(f"{what} claims {count} elements, for which it has no room")
        self._lengths[key] = count
        if kind == _STRING:
            for _ in range(count):
                self._skip(self._unpacked("<Q", what)[0], what)
        elif count <= KEPT_OF_ARRAY:
            self._metadata[key] = tuple(self._value(key, kind) for _ in range(count))
        else:
            self._skip(count * least, what)

    def _check_metadata(self) -> None:
        architecture = self._metadata.get(ARCHITECTURE)
        if not isinstance(architecture, str) or not architecture:
            raise self._wrong(f"it does not say what model it holds ({ARCHITECTURE})")
        if not _is_printable(architecture) or len(architecture) > LONGEST_NAME:
            raise self._wrong(f"its {ARCHITECTURE} is {shown(architecture)}, which is no name")
        parts = self._metadata.get(PARTS, 1)
        if isinstance(parts, int) and parts > 1:
            raise self._wrong(f"it is one of {parts} parts. {MERGE[:-1]}")
        step = self._metadata.get(ALIGNMENT, 32)
        fits = isinstance(step, int) and not isinstance(step, bool) and 8 <= step <= 1 << 20
        if not fits or int(step).bit_count() != 1:  # type: ignore[arg-type]
            raise self._wrong(f"its {ALIGNMENT} is {shown(str(step))}, no power of two from 8 on")

    def _listed(self) -> _Listed:
        name = self._text("the name of a tensor", LONGEST_NAME)
        if not name or not _is_printable(name):
            raise self._wrong(f"it has a tensor called {shown(name)}, which is no name")
        what = f"tensor {shown(name)}"
        (axes,) = self._unpacked("<I", what)
        if not 1 <= axes <= MOST_AXES:
            raise self._wrong(f"{what} has {axes} axes; 1 to {MOST_AXES} are possible")
        shape = self._unpacked(f"<{axes}Q", what)[::-1]
        number, offset = self._unpacked("<IQ", what)
        if number not in TYPES:
            gone = f" ({GONE[number]}, which llama.cpp no longer reads)" if number in GONE else ""
            known = ", ".join(kind.name for kind in TYPES.values())
            raise self._wrong(f"{what} is of type {number}{gone}, which is unknown; known: {known}")
        return name, shape, TYPES[number], offset

    def _placed(self, listed: list[_Listed]) -> dict[str, Tensor]:
        """Each tensor where it lies, once it is sure that it lies in the file, and alone."""
        step = int(self._metadata.get(ALIGNMENT, 32))  # type: ignore[arg-type]
        base = -(-self._at // step) * step
        found: dict[str, Tensor] = {}
        for name, shape, kind, offset in listed:
            what = f"tensor {shown(name)}"
            if name in found:
                raise self._wrong(f"{what} stands in it twice")
            if not 1 <= math.prod(shape) <= MOST_NUMBERS:
                raise self._wrong(f"{what} claims the sizes {' x '.join(map(str, shape))}")
            if shape[-1] % kind.numbers:
                raise self._wrong(
                    f"{what} has rows of {shape[-1]} numbers, and {kind.name} has blocks of "
                    f"{kind.numbers}"
                )
            if offset % step:
                raise self._wrong(f"{what} is at {offset}, which is no multiple of {step}")
            found[name] = Tensor(name, shape, kind, base + offset)
        end = max((one.start + one.bytes for one in found.values()), default=base)
        if end > self._size:
            last = max(found.values(), key=lambda one: one.start + one.bytes)
            raise self._wrong(
                f"it has {self._size:,} of {end:,} bytes (tensor {shown(last.name)} is cut off). "
                "Download or copy it again"
            )
        in_order = sorted(found.values(), key=lambda one: one.start)
        for before, after in pairwise(in_order):
            if before.start + before.bytes > after.start:
                raise self._wrong(
                    f"tensors {shown(before.name)} and {shown(after.name)} lie on the same bytes"
                )
        return found

    def _text(self, what: str, longest: int) -> str:
        (length,) = self._unpacked("<Q", what)
        if length > longest:
            raise self._wrong(f"{what} claims to be {length} bytes long; {longest} is the most")
        start = self._at
        self._skip(length, what)
        try:
            return self._data[start : self._at].decode("utf-8")
        except UnicodeDecodeError:
            raise self._wrong(f"{what} is no UTF-8 text") from None

    def _unpacked(self, form: str, what: str) -> tuple[int, ...]:
        start = self._at
        self._skip(struct.calcsize(form), what)
        return struct.unpack_from(form, self._data, start)

    def _skip(self, count: int, what: str) -> None:
        if count > self._size - self._at:
            raise self._wrong(f"it ends within {what}. Download or copy it again")
        self._at += count

    def _wrong(self, why: str) -> ModelError:
        return ModelError(f"{shown(self._path.name)} is not read: {why}.")


def _is_printable(text: str) -> bool:
    return text.isprintable() and not any(letter.isspace() for letter in text)
