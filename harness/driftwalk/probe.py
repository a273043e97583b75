"""The fixed inputs that every backend gets, with a content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .dtypes import Array
from .errors import ProbeError, UsageError
from .files import write_atomically
from .jsonable import decode
from .point import read_only


@dataclass(frozen=True, eq=False)
class Probe:
    """The fixed inputs every backend gets, under the names the model's forward takes them."""

    inputs: Mapping[str, Array]
    origin: str = "arrays"
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    kept: Mapping[str, Array] | None = None
    """What is not padding, as (row, position), by the beginning of points' names; None: as the
    masks say that transformers models take."""
    remarks: tuple[str, ...] = ()
    """What is to be said of the masks."""

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ProbeError("The probe has no inputs at all; give texts, ids or arrays.")
        arrays = {name: read_only(_own_copy(name, a)) for name, a in self.inputs.items()}
        for name, array in arrays.items():
            if array.size == 0:
                raise ProbeError(f"Probe input {name!r} is empty (shape {array.shape}).")
        object.__setattr__(self, "inputs", MappingProxyType(arrays))

    @cached_property
    def sha256(self) -> str:
        """Hash of names, dtypes, shapes and bytes; texts are not part of it."""
        digest = hashlib.sha256()
        for name in sorted(self.inputs):
            array = self.inputs[name]
            digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def forms(self) -> list[str]:
        """Name, shape and dtype of each input: what a graph is made for."""
        return [f"{n}{a.shape}{a.dtype}" for n, a in sorted(self.inputs.items())]

    def difference(self, other: Probe) -> str:
        """In what two probes differ, in words; empty where they are the same inputs."""
        told = []
        for name in sorted(self.inputs.keys() | other.inputs.keys()):
            ours, theirs = self.inputs.get(name), other.inputs.get(name)
            if ours is None or theirs is None:
                told.append(f"{name} is only in the {'second' if ours is None else 'first'}")
            elif (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                told.append(
                    f"{name} is {ours.dtype}{list(ours.shape)} and {theirs.dtype}"
                    f"{list(theirs.shape)}"
                )
            elif ours.tobytes() != theirs.tobytes():
                count = int(np.count_nonzero(ours != theirs))
                told.append(f"{name} differs in {count} of {ours.size} elements")
        return "; ".join(told)

    def keep(self, point: str, shape: tuple[int, ...]) -> Array | None:
        """Which (row, position) pairs of a state are not padding; None where all count."""
        mask = self._mask(point)
        if mask is None or len(shape) < 3 or mask.shape != shape[:2]:
            return None
        keep = mask != 0
        return None if keep.all() else keep

    def _mask(self, point: str) -> Array | None:
        if self.kept is not None:
            parts = point.split(".")
            names = (".".join(parts[:n]) for n in range(len(parts), -1, -1))
            return next((self.kept[name] for name in names if name in self.kept), None)
        decoder = point.startswith("decoder.") or (
            not point.startswith("encoder.") and any(n.startswith("decoder_") for n in self.inputs)
        )
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    @property
    def notes(self) -> tuple[str, ...]:
        """How many positions are left out as padding, and what else is to be said of masks."""
        masks = self.kept
        if masks is None:
            named = ("attention_mask", "decoder_attention_mask")
            masks = {name: self.inputs[name] for name in named if name in self.inputs}
        distinct = {mask.tobytes(): mask != 0 for mask in masks.values() if mask.ndim == 2}
        told = [
            f"{int((~keep).sum())} of {keep.size} positions were left out as padding."
            for keep in distinct.values()
            if not keep.all()
        ]
        return (*told, *self.remarks)

    def save(self, path: str | Path) -> Path:
        """Write the probe to one safetensors file."""
        from safetensors.numpy import save

        notes = {"origin": self.origin, "texts": self.texts, "tokens": self.tokens}
        data = save(dict(self.inputs), metadata={"driftwalk.probe": json.dumps(notes)})
        return write_atomically(Path(path), data)

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """Read a probe from a safetensors file: one of driftwalk's, or any with named inputs."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="np") as file:
                inputs = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                text = (file.metadata() or {}).get("driftwalk.probe", "{}")
            notes = decode(_Notes, json.loads(text), "driftwalk.probe")
        except (OSError, SafetensorError, ValueError, UsageError) as error:
            raise ProbeError(
                f"Cannot read a probe from {str(path)!r}: {error}. "
                "A probe file is a safetensors file with one tensor per model input."
            ) from None
        origin = notes.origin or f"file {Path(path).name}"
        return cls(inputs, origin, notes.texts, notes.tokens)


@dataclass(frozen=True)
class _Notes:
    """What a probe file says beside its arrays."""

    origin: str = ""
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()


def _own_copy(name: str, given: Any) -> Array:
    """A copy in native byte order: what was hashed cannot be changed through the caller's array."""
    try:
        array = np.array(given, order="C")
    except ValueError:  # rows of unequal length
        array = np.array(None)
    if array.dtype.kind not in "fiubV" or array.dtype.type is np.void:
        raise ProbeError(
            f"Probe input {name!r} is not an array of numbers (dtype {array.dtype}). "
            "Rows of unequal length must be padded, with an attention_mask."
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
