"""Safetensors files: written as they come, read by mapping them.

The format is a length, a header of JSON and bytes. Reading it here, and not by a package, means
that nothing is copied, that bfloat16 and fp8 are known, and that every number in a header that
somebody else wrote is checked before it is believed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..dtypes import FORMATS, Array
from ..errors import UsageError
from ..workers import in_threads

_Place = tuple[np.dtype[Any], tuple[int, ...], int, int]
MOST_HEADER = 64 << 20
_MOST_AXES = 32

_DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(f"<f{int(name[1:]) // 8}") for name in ("F64", "F32", "F16")},
    **{name: np.dtype(f"<i{int(name[1:]) // 8}") for name in ("I64", "I32", "I16", "I8")},
    **{name: np.dtype(f"<u{int(name[1:]) // 8}") for name in ("U64", "U32", "U16", "U8")},
    **{"BOOL": np.dtype("|b1"), "BF16": FORMATS["bf16"].dtype, "F8_E4M3": FORMATS["fp8"].dtype},
}


def write_tensors(path: Path, tensors: Mapping[str, Array], sync: bool = True) -> None:
    """The same tensors give the same bytes; `sync` waits until the disk has them."""
    header: dict[str, Any] = {}
    names = {dtype: name for name, dtype in _DTYPES.items()}
    at = 0
    for name, array in tensors.items():
        dtype, where = names.get(array.dtype.newbyteorder("=")), [at, at + array.nbytes]
        if dtype is None:
            raise UsageError(f"Arrays of {array.dtype} cannot be stored in a safetensors file.")
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": where}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 64)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(_bytes(array))
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_tensors(path: Path) -> dict[str, Array]:
    """Every tensor of a file, mapped and read-only; a file that is none is said to be none."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header(file, size)
            found = {name: _placed(name, entry, size - start) for name, entry in header.items()}
            data = np.memmap(file, np.uint8, "r") if size else np.zeros(0, np.uint8)
    except OSError as error:
        raise UsageError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is no safetensors file: {error}") from None
    return _arrays(data, start, found)


def tensors_in(stored: bytes) -> dict[str, Array]:
    """The same of a file that was read; ValueError where it is none."""
    header, start = _header(io.BytesIO(stored), len(stored))
    found = {name: _placed(name, entry, len(stored) - start) for name, entry in header.items()}
    return _arrays(np.frombuffer(stored, np.uint8), start, found)


def _arrays(data: Array, start: int, found: Mapping[str, _Place]) -> dict[str, Array]:
    return {
        name: np.require(
            data[start + first : start + last].view(np.ndarray).view(kind).reshape(shape),
            requirements="A",
        )
        for name, (kind, shape, first, last) in found.items()
    }


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    if size < 8:
        raise ValueError(f"it has only {size} bytes.")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(MOST_HEADER, size - 8):
        raise ValueError(f"its header would have {length} bytes, the file has {size}.")
    header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object.")  # noqa: TRY004 - what the file says
    header.pop("__metadata__", None)
    return header, 8 + length


def _placed(name: str, entry: Any, room: int) -> _Place:
    """Dtype, shape, first and last byte of a tensor: all as the header says, and all possible."""
    entry = entry if isinstance(entry, dict) else {}
    kind = _DTYPES.get(str(entry.get("dtype")))
    shape, where = entry.get("shape"), entry.get("data_offsets")
    if kind is None:
        raise ValueError(f"tensor {name[:80]!r} has no dtype that is known here.")
    if not _whole(shape) or len(shape) > _MOST_AXES or not _whole(where) or len(where) != 2:
        raise ValueError(f"tensor {name[:80]!r} has no shape and place that can be.")
    first, last = where
    if not first <= last <= room or math.prod(shape) * kind.itemsize != last - first:
        raise ValueError(
            f"tensor {name[:80]!r} does not fit: shape {shape[:8]}, bytes {first} to {last} of "
            f"{room}."
        )
    return kind, tuple(shape), first, last


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 62 for v in values
    )


def _bytes(array: Array) -> Any:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    flat = np.ascontiguousarray(little).reshape(-1)
    return flat.view(np.uint8).data if flat.size else b""


def sha256_of_all(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Of the bytes as a file has them, side by side: a hash takes longer than reading them."""

    def sha256_of(array: Array) -> str:
        return hashlib.sha256(_bytes(array)).hexdigest()

    return dict(zip(arrays, in_threads(sha256_of, list(arrays.values())), strict=True))
