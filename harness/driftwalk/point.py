"""A place in a model, the tensor there, who made it, and from which inputs: numpy, read-only."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .decoding import Decoding
from .dtypes import Array, dtype_name
from .errors import ProbeError, UsageError
from .files import write_atomically
from .jsonable import Later, Sparse, decode, encode
from .names import is_shared
from .other_inputs import ARRAY, as_array, content, from_plain, in_words, is_array, kept, to_plain


def read_only(array: Array) -> Array:
    """A view of `array` that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class Point:
    """A place in the model: its canonical name, and the module it was taken from."""

    name: str
    module: str = ""
    found: Sparse[str] = field(default="", compare=False)
    """How a backend that has no modules found it: by scope metadata, by value, ..."""
    output: Sparse[str] = field(default="", compare=False)
    """What the model itself calls an output, where the point's name does not tell it."""

    @property
    def is_shared(self) -> bool:
        return is_shared(self.name)


@dataclass(frozen=True, eq=False)
class State:
    """The tensor at one point, in its native dtype."""

    point: Point
    array: Array

    @property
    def dtype(self) -> str:
        return dtype_name(self.array)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def elements(self) -> int:
        return math.prod(self.shape)


@runtime_checkable
class Held(Protocol):
    """A tensor left where it was made: a copy that nobody writes to, fetched when asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str:
        """As `dtype_name` would have it."""

    def fetch(self) -> Array: ...


class HeldState(State):
    """A state that stays on its device until somebody asks for its array."""

    def __init__(self, point: Point, held: Held) -> None:
        object.__setattr__(self, "point", point)
        object.__setattr__(self, "held", held)

    held: Held

    @cached_property
    def array(self) -> Array:
        return read_only(self.held.fetch())

    @property
    def dtype(self) -> str:
        return self.held.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape


@dataclass(frozen=True)
class BackendInfo:
    """Who made a trace: everything that may explain a different number."""

    spec: str
    name: str
    device: str
    dtype: str
    """What it computes in; states may be stored wider."""
    versions: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    dtypes: Later[Mapping[str, str]] = field(default_factory=dict)
    """What each point computes in; empty where all compute in `dtype`, which is the coarsest."""
    stored: Later[Mapping[str, str]] = field(default_factory=dict)
    """Of such a mixture: the dtype of a state that is handed on coarser than it was computed."""


@dataclass(frozen=True, eq=False)
class Probe:
    """The fixed inputs that every backend gets, by the names that the model's forward has."""

    inputs: Mapping[str, Array]
    origin: str = "arrays"
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    kept: Mapping[str, Array] | None = None
    """What is not padding, as (row, position), by the beginning of points' names; None: as the
    masks say that transformers models take."""
    remarks: tuple[str, ...] = ()
    """What is to be said of the masks."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Inputs that are not one array (other_inputs.py); nobody may change what lies in them."""

    def __post_init__(self) -> None:
        if not self.inputs and not self.others:
            raise ProbeError("The probe has no inputs at all; give texts, ids or arrays.")
        arrays = {name: read_only(_own_copy(name, a)) for name, a in self.inputs.items()}
        object.__setattr__(self, "inputs", MappingProxyType(arrays))
        others = {name: kept(name, value) for name, value in self.others.items()}
        if twice := arrays.keys() & others.keys():
            raise ProbeError(f"Probe input {min(twice)!r} was given twice.")
        object.__setattr__(self, "others", MappingProxyType(others))

    @property
    def names(self) -> tuple[str, ...]:
        """Of all inputs."""
        return (*self.inputs, *self.others)

    def refuse_others(self, who: str) -> None:
        """For a backend that takes arrays alone."""
        for name, value in self.others.items():
            raise ProbeError(
                f"{who} takes arrays alone, and probe input {name!r} is {in_words(value)}. Leave "
                "it out, give it as an array, or compare backends that run in PyTorch."
            )

    @cached_property
    def sha256(self) -> str:
        """Hash of names, dtypes, shapes and bytes; texts are not part of it."""
        digest = hashlib.sha256()
        for name in sorted(self.inputs):
            array = self.inputs[name]
            digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            digest.update(array.tobytes())
        for name in sorted(self.others):
            digest.update(f"{name}|".encode())
            for part in content(self.others[name]):
                digest.update(part)
        return digest.hexdigest()

    def forms(self) -> list[str]:
        """Name, shape and dtype of each input: what a graph is made for."""
        arrays = [f"{n}{a.shape}{a.dtype}" for n, a in sorted(self.inputs.items())]
        return [*arrays, *(f"{n}={_hash_of(v)}" for n, v in sorted(self.others.items()))]

    def difference(self, other: Probe) -> str:
        """In what two probes differ, in words; empty where they are the same inputs."""
        words = []
        for name in sorted(self.inputs.keys() | other.inputs.keys()):
            ours, theirs = self.inputs.get(name), other.inputs.get(name)
            if ours is None or theirs is None:
                words.append(f"{name} is only in the {'second' if ours is None else 'first'}")
            elif (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
                forms = [f"{array.dtype}{list(array.shape)}" for array in (ours, theirs)]
                words.append(f"{name} is {' and '.join(forms)}")
            elif ours.tobytes() != theirs.tobytes():
                count = int(np.count_nonzero(ours != theirs))
                words.append(f"{name} differs in {count} of {ours.size} elements")
        for name in sorted(self.others.keys() | other.others.keys()):
            if name not in self.others or name not in other.others:
                words.append(
                    f"{name} is only in the {'first' if name in self.others else 'second'}"
                )
            elif _hash_of(self.others[name]) != _hash_of(other.others[name]):
                both = [in_words(probe.others[name]) for probe in (self, other)]
                words.append(f"{name} differs: {' and '.join(both)}")
        return "; ".join(words)

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
            names = self.inputs.keys() & {"attention_mask", "decoder_attention_mask"}
            masks = {name: self.inputs[name] for name in sorted(names)}
        distinct = {mask.tobytes(): mask != 0 for mask in masks.values() if mask.ndim == 2}
        left_out = [
            f"{int((~keep).sum())} of {keep.size} positions were left out as padding."
            for keep in distinct.values()
            if not keep.all()
        ]
        return (*left_out, *self.remarks)

    def save(self, path: str | Path, decoding: Decoding | None = None) -> Path:
        """Write the probe to one safetensors file; an input that is an object is refused.

        `decoding` tells who reads it to feed the sequence step by step.
        """
        from safetensors.numpy import save

        notes: dict[str, Any] = {"origin": self.origin, "texts": self.texts, "tokens": self.tokens}
        arrays, others = self.plain_others()
        if others:
            notes["others"] = others
        if decoding is not None:
            notes["decoding"] = encode(decoding)
        tensors = {**self.inputs, **arrays}
        data = save(tensors, metadata={"driftwalk.probe": json.dumps(notes)})
        return write_atomically(Path(path), data)

    def plain_others(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """What is not one array as JSON, and the arrays in it, for a file."""
        arrays: dict[str, Array] = {}
        return arrays, {n: to_plain(f"{n!r}", v, arrays) for n, v in self.others.items()}

    @classmethod
    def load(cls, path: str | Path) -> Probe:
        """Read a probe from a safetensors file, driftwalk's or any with named inputs; or .npz."""
        if Path(path).suffix == ".npz":
            from .input_files import read_npz

            return cls(read_npz(Path(path)), f"file {Path(path).name}")
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="np") as file:
                inputs = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                text = (file.metadata() or {}).get("driftwalk.probe", "{}")
            notes = decode(_Notes, json.loads(text), "driftwalk.probe")
            inside = {n: inputs.pop(n) for n in list(inputs) if notes.others and n[:6] == ARRAY}
            others = {name: from_plain(data, inside) for name, data in notes.others.items()}
        except (OSError, SafetensorError, ValueError, TypeError, KeyError, UsageError) as error:
            raise ProbeError(
                f"Cannot read a probe from {str(path)!r}: {error}. "
                "A probe file is a safetensors file, or an .npz, with one tensor per model input."
            ) from None
        origin = notes.origin or f"file {Path(path).name}"
        return cls(inputs, origin, notes.texts, notes.tokens, others=others)


@dataclass(frozen=True)
class _Notes:
    """What a probe file says beside its arrays."""

    origin: str = ""
    texts: tuple[str, ...] = ()
    tokens: tuple[tuple[str, ...], ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)


def _hash_of(value: Any) -> str:
    return hashlib.sha256(b"".join(content(value))).hexdigest()


def _own_copy(name: str, given: Any) -> Array:
    """A copy in native byte order: what was hashed cannot be changed through the caller's array."""
    try:
        array = np.array(as_array(given) if is_array(given) else given, order="C")
    except ValueError:  # rows of unequal length
        array = np.array(None)
    if array.dtype.kind not in "fiubcV" or array.dtype.type is np.void:
        raise ProbeError(
            f"Probe input {name!r} is not an array of numbers (dtype {array.dtype}). "
            "Rows of unequal length must be padded, with an attention_mask."
        )
    if array.size == 0:
        raise ProbeError(f"Probe input {name!r} is empty (shape {array.shape}).")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
