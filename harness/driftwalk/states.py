"""What crosses every wall: probes, points, states and traces. Plain numpy, read-only."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .dtypes import Array, dtype_name
from .errors import ProbeError, UsageError
from .files import write_atomically
from .jsonable import Later, Sparse, decode

OUTPUT = "output."
"""Before the name of an output of the model, in the name of its point; the main one is `logits`."""


def read_only(array: Array) -> Array:
    """A view of `array` that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


SHARED = "shared"
"""Begins the names of what all layers are handed beside the stream: `shared.rotary.0` ..."""


@dataclass(frozen=True)
class Point:
    """A place in the model: its canonical name, and the module it was taken from."""

    name: str
    module: str = ""
    found: Sparse[str] = field(default="", compare=False)
    """How a backend that has no modules found it: by scope metadata, by value, ..."""

    @property
    def is_shared(self) -> bool:
        """Whether it is no layer's state, but what layers share; a backend need not give it."""
        parts = [*self.name.split("."), ""]
        if SHARED not in parts:
            return False
        place = parts.index(SHARED)  # a stack, or a module inside a layer, may be called so, too
        return "layer" not in parts[:place] and parts[place + 1] not in ("layer", "embed", "norm")


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
class Trace:
    """The ordered states of one backend on one probe, and who made them."""

    states: tuple[State, ...]
    probe: Probe
    backend: BackendInfo
    outputs: Mapping[str, Array] = field(default_factory=dict)
    model: Mapping[str, str] = field(default_factory=dict)
    """Which model it was, as far as is known: its label, the hash of its weights."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The machine, where it was written down."""

    def save(self, folder: str | Path) -> Path:
        """Write it to a folder, from which `Trace.load` maps it; see trace_file.py."""
        from .traces.trace_file import save_trace

        return save_trace(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> Trace:
        """Map a trace from its folder; every byte is held against the hashes in its manifest."""
        from .traces.trace_file import load_trace

        return load_trace(folder)

    @cached_property
    def _by_name(self) -> dict[str, State]:
        return {state.point.name: state for state in self.states}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(state.point.name for state in self.states)

    def state(self, name: str) -> State | None:
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Array:
        try:
            return self._by_name[name].array
        except KeyError:
            raise KeyError(f"no point {name!r}; this trace has {', '.join(self.names)}") from None

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"<Trace of {self.backend.spec}: {', '.join(self.names)}>"


def same_bits(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two sets of named arrays agree in every bit (NaN payloads included)."""
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and _same_bytes(a[n], b[n]) for n in a
    )


def _same_bytes(a: Array, b: Array, block: int = 1 << 18) -> bool:
    """Byte by byte, some at a time: outputs can be as large as all states together."""
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    return all(
        np.array_equal(left[i : i + block], right[i : i + block])
        for i in range(0, left.size, block)
    )
