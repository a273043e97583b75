"""A trace that is larger than memory should hold: states beyond a budget go to a temporary file.

A spilled state maps its part of the file each time its array is asked for, and lets go of it with
the array: only what is being looked at is in memory. The file has no name, and is gone with the
process whatever happens.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

import numpy as np

from ..adapter import Backend
from ..dtypes import Array
from ..names import is_output
from ..states import Point, Probe, State, Trace, read_only

_ALIGN = 64


class SpilledState(State):
    """A state whose array is in a file."""

    def __init__(self, point: Point, stored: Stored) -> None:
        object.__setattr__(self, "point", point)
        object.__setattr__(self, "_stored", stored)

    @property
    def array(self) -> Array:
        stored: Stored = self.__dict__["_stored"]
        return stored.load()


class Stored:
    """One array in a file."""

    def __init__(self, file: BinaryIO, array: Array) -> None:
        file.seek(0, 2)
        gap = -file.tell() % _ALIGN
        file.write(b"\0" * gap)
        self._file, self._at = file, file.tell()
        self._shape, self._dtype, self._size = array.shape, array.dtype, array.nbytes
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()

    def load(self) -> Array:
        """The array, mapped afresh."""
        if not self._size:
            return read_only(np.zeros(self._shape, self._dtype))
        mapped = np.memmap(self._file, np.uint8, "r", self._at, (self._size,))
        return mapped.view(np.ndarray).view(self._dtype).reshape(self._shape)


class SpilledOutputs(Mapping[str, Array]):
    """Outputs by name; one that is in the file is mapped each time it is asked for, as states are.

    Held as arrays they would stay in memory as long as the trace does, and they are its largest.
    """

    def __init__(self, kept: Mapping[str, Array | Stored]) -> None:
        self._kept = dict(kept)

    def __getitem__(self, name: str) -> Array:
        found = self._kept[name]
        return found.load() if isinstance(found, Stored) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)


class Spill:
    """Keeps arrays in memory up to a budget of bytes, and writes all others to a file."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="driftwalk-"))  # noqa: SIM115
        self._written: list[tuple[weakref.ref[Array], Any, Stored]] = []

    def keep(self, state: State) -> State:
        """The state itself, or one that is read from the file."""
        array = state.array
        self._left -= array.nbytes
        if self._left >= 0:
            return state
        stored = Stored(self._file, array)
        if is_output(state.point.name):
            # What a sink is given is a view, which is gone at once; whose memory it is, is not.
            owner = array if array.base is None else array.base
            if isinstance(owner, np.ndarray):
                self._written.append((weakref.ref(owner), _start(array), stored))
        return SpilledState(state.point, stored)

    def outputs(self, given: Mapping[str, Array]) -> SpilledOutputs:
        """The outputs that are states, once more from the file; the others as they are."""
        return SpilledOutputs({name: self._output(array) for name, array in given.items()})

    def _output(self, array: Array) -> Array | Stored:
        for owner, start, stored in self._written:
            if owner() is not None and start == _start(array):
                return stored
        return array

    def close(self) -> None:
        """Let go of the file; arrays that are still mapped stay readable."""
        self._file.close()


def _start(array: Array) -> tuple[int, tuple[int, ...], str]:
    """Tells whether two arrays that are both alive are one."""
    address: int = array.__array_interface__["data"][0]
    return address, array.shape, array.dtype.str


def spilled_trace(backend: Backend, probe: Probe, spill: Spill) -> Trace:
    """`backend.trace(probe)`, with no more of it in memory than the budget allows."""
    states: list[State] = []
    outputs = backend.stream(probe, lambda state: states.append(spill.keep(state)))
    return Trace(tuple(states), probe, backend.info, spill.outputs(outputs))
