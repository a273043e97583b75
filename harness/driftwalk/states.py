"""What crosses every wall: probes, points, states and traces. Plain numpy, read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .decoding import Decoding
from .dtypes import Array
from .names import OUTPUT, SHARED
from .point import BackendInfo, Held, HeldState, Point, Probe, State, read_only
from .traces.trace_file import read_trace, save_trace

__all__ = [
    "OUTPUT",
    "SHARED",
    "BackendInfo",
    "Held",
    "HeldState",
    "Point",
    "Probe",
    "State",
    "Trace",
    "read_only",
    "same_bits",
]


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
    decoding: Decoding | None = None
    """How the sequence was fed, where it was decoded step by step; its states are joined."""

    def save(self, folder: str | Path) -> Path:
        """Write it to a folder, from which `Trace.load` maps it; see trace_file.py."""
        return save_trace(self, folder)

    @classmethod
    def load(cls, folder: str | Path, probe: Probe | None = None) -> Trace:
        """Map a trace from its folder; every byte is held against the hashes in its manifest.

        `probe` stands in for inputs that the trace does not bring along.
        """
        return cls(*read_trace(folder, probe))

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
    return a.keys() == b.keys() and all(_same_bytes(a[name], b[name]) for name in a)


def _same_bytes(a: Array, b: Array, block: int = 1 << 18) -> bool:
    """Byte by byte, some at a time: outputs can be as large as all states together."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    left, right = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (a, b))
    starts = range(0, left.size, block)
    return all(np.array_equal(left[i : i + block], right[i : i + block]) for i in starts)
