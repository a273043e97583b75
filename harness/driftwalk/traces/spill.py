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
    """A state whose array is in a file, and is mapped afresh each time it is asked for."""

    def __init__(self, point: Point, file: BinaryIO, array: Array) -> None:
        file.seek(0, 2)
        file.write(b"\0" * (-file.tell() % _ALIGN))
        stored = file, file.tell(), array.nbytes, array.dtype, array.shape
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        file.flush()
        self.__dict__.update(point=point, _stored=stored)

    @property
    def array(self) -> Array:
        file, start, size, dtype, shape = self.__dict__["_stored"]
        if not size:
            return read_only(np.zeros(shape, dtype))
        mapped = np.memmap(file, np.uint8, "r", start, (size,)).view(np.ndarray)
        array: Array = mapped.view(dtype).reshape(shape)
        return array


class SpilledOutputs(Mapping[str, Array]):
    """Outputs by name, each the array of a state.

    Held as arrays they would stay in memory as long as the trace does, and they are its largest.
    """

    def __init__(self, states: Mapping[str, State]) -> None:
        self._states = dict(states)

    def __getitem__(self, name: str) -> Array:
        return self._states[name].array

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


class Spill:
    """Keeps arrays in memory up to a budget of bytes, and writes all others to a file."""

    def __init__(self, budget: int) -> None:
        self._left = budget
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="driftwalk-"))  # noqa: SIM115
        self._written: list[tuple[weakref.ref[Array], Any, SpilledState]] = []

    def keep(self, state: State) -> State:
        """The state itself, or one that is read from the file."""
        array = state.array
        self._left -= array.nbytes
        if self._left >= 0:
            return state
        spilled = SpilledState(state.point, self._file, array)
        if is_output(state.point.name):
            # What a sink is given is a view, which is gone at once; whose memory it is, is not.
            owner = array if array.base is None else array.base
            if isinstance(owner, np.ndarray):
                self._written.append((weakref.ref(owner), _start(array), spilled))
        return spilled

    def outputs(self, given: Mapping[str, Array]) -> SpilledOutputs:
        """The outputs that are states, once more from the file; the others as they are."""
        return SpilledOutputs({name: self._output(name, array) for name, array in given.items()})

    def _output(self, name: str, array: Array) -> State:
        for owner, start, spilled in self._written:
            if owner() is not None and start == _start(array):
                return spilled
        return State(Point(name), array)

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
