"""GGUF files made byte by byte: good ones, and such as no writer would make."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_FORMS = {4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q"}
STRING, ARRAY, UINT32, UINT64, BOOLEAN = 8, 9, 4, 10, 7


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


@dataclass(frozen=True)
class Entry:
    """One of the metadata."""

    key: str | bytes
    kind: int
    value: Any

    @property
    def raw(self) -> bytes:
        head = text(self.key) + struct.pack("<I", self.kind)
        if isinstance(self.value, bytes):
            return head + self.value
        if self.kind == STRING:
            return head + text(self.value)
        return head + struct.pack(_FORMS[self.kind], self.value)


@dataclass(frozen=True)
class Listed:
    """A tensor as the header lists it."""

    name: str | bytes
    sizes: Sequence[int] = (32,)
    """The fastest axis first."""
    kind: int = 0
    offset: int = 0
    axes: int | None = None

    @property
    def raw(self) -> bytes:
        axes = len(self.sizes) if self.axes is None else self.axes
        sizes = struct.pack(f"<{len(self.sizes)}Q", *self.sizes)
        return (
            text(self.name)
            + struct.pack("<I", axes)
            + sizes
            + struct.pack("<IQ", self.kind, self.offset)
        )


LLAMA = Entry("general.architecture", STRING, "llama")


@dataclass(frozen=True)
class File:
    """A whole file; counts are true unless they are said to be others."""

    entries: tuple[Entry, ...] = (LLAMA,)
    tensors: tuple[Listed, ...] = (Listed("a"), Listed("b", offset=128))
    data: int = 256
    """Bytes of numbers."""
    version: int = 3
    counts: tuple[int | None, int | None] = (None, None)
    magic: bytes = b"GGUF"
    alignment: int = 32
    tail: bytes = field(default=b"")

    def but(self, **changes: Any) -> File:
        return replace(self, **changes)

    @property
    def raw(self) -> bytes:
        tensors, entries = self.counts
        head = self.magic + struct.pack(
            "<IQQ",
            self.version,
            len(self.tensors) if tensors is None else tensors,
            len(self.entries) if entries is None else entries,
        )
        head += b"".join(one.raw for one in (*self.entries, *self.tensors))
        return head + bytes(-len(head) % self.alignment) + b"\1" * self.data + self.tail
