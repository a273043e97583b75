"""Launches the kernels: pairs of held states wait in a line, and many are compared at once.

From Python a launch takes as long as a large GPU needs for a whole state.
"""

from __future__ import annotations

import struct
from contextlib import nullcontext
from functools import cache, lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from driftwalk.dtypes import Array
from driftwalk.measure.metric_list import Sums
from driftwalk.measure.reduction import Reduced, Reducing
from driftwalk.measure.ulp import bucket_of, start_of
from driftwalk.tolerance import Tolerance

from ..tensors import as_rows
from . import kernels as k
from . import parts as f

if TYPE_CHECKING:
    from .states import HeldTensor

PART = 1 << 13
"""Columns of a unit: longer rows are cut."""
BLOCK, WARPS = 256, 1
"""Columns that `look` takes at a time, and with how many warps."""
UNITS = 1
"""Units that each of its programs takes."""
PLACES, SURVEY_WARPS = 64, 4
"""Places that a program of `survey` looks at, 16 elements at each."""
SURVEYED, FEWEST, MOST = 32, 32, 1024
"""One element in so many is looked at beforehand, by no fewer and no more programs than these."""
SETTLERS, SETTLE, SETTLE_WARPS = 128, 1024, 4
"""Programs of `settle` for each pair, and columns that they take at a time."""
TOGETHER = 1 << 26
"""Elements that are compared at once: enough to fill a device, and few enough to wait for."""
_LOW, _TINY = 2.0**-80, 1e-30
"""Below the first squares may be lost to float32; below the second, digits."""
_TOLD, _HEAD = struct.Struct(f"{f.PAIR.value}q"), f.HEAD.value


def copied(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy, and the sums of squares of its rows."""
    rows = as_rows(tensor.contiguous())
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    squares = torch.empty(len(rows), dtype=torch.float64, device=tensor.device)
    with _on(tensor.device):
        k.copy[(len(rows),)](rows, copy, squares, rows.shape[1], BLOCK=4096, num_warps=8)
    return copy, squares


def fused(
    reference: HeldTensor, candidate: HeldTensor, tolerance: Tolerance, rows: Array | None
) -> Reducing | None:
    """Put two states in the line; None where kernels cannot compare them.

    `rows` are the numbers of those that count, where not all do.
    """
    room = _room(tolerance)
    if room is None:
        return None
    chosen = None if rows is None else _chosen(rows.astype(np.int32).tobytes(), candidate.device)
    count = candidate.rows if rows is None else len(rows)
    even = (candidate.width | reference.address | candidate.address) % 16 == 0
    line = _line(candidate.device, reference.kind, candidate.kind, even)
    return line.put(_Pair(reference, candidate, count, chosen, room))


@lru_cache(maxsize=64)
def _room(tolerance: Tolerance) -> tuple[int, int, int] | None:
    """Bits of atol and rtol, and whether atol is a share of the RMS; None beyond float32."""
    if not all(value == 0 or 1e-20 < value < 1e10 for value in (tolerance.atol, tolerance.rtol)):
        return None
    atol, rtol = struct.unpack("qq", struct.pack("dd", tolerance.atol, tolerance.rtol))
    return atol, rtol, int(tolerance.scale == "rms")


@lru_cache(maxsize=16)
def _chosen(rows: bytes, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(rows, np.int32).copy()).to(device)


class _Pair:
    """Two states in a line, and which of their rows count. Called, it waits for their numbers."""

    def __init__(
        self,
        r: HeldTensor,
        c: HeldTensor,
        count: int,
        chosen: torch.Tensor | None,
        room: tuple[int, int, int],
    ) -> None:
        self._r, self._c, self._chosen, self._room = r, c, chosen, room
        self.count, self.width, self.parts = count, c.width, -(-c.width // PART)
        self.units, self.elements = count * self.parts, count * c.width
        self.surveyors = max(FEWEST, min(MOST, self.elements // (SURVEYED * PLACES * 16)))
        self.group: _Group
        self.head_at = 0
        """Where its numbers will be among those of its group."""

    def tell(self, paper: memoryview, number: int, table_at: int) -> None:
        """All that kernels are told, in the order of parts.py."""
        r, c, chosen = self._r, self._c, self._chosen
        _TOLD.pack_into(
            *(paper, number * _TOLD.size),
            *(r.address, c.address, 0 if chosen is None else chosen.data_ptr()),
            *(r.squares.data_ptr(), c.squares.data_ptr()),
            *(self.count, self.width, self.parts, self.surveyors),
            *(*self._room, self.head_at, table_at),
        )

    def __call__(self) -> Reduced | None:
        line, end = self.group.line, self.head_at + _HEAD + self.count
        numbers = line.numbers(self.group)[self.head_at : end]
        return read(numbers, self.count, self.width, line.fast)


class _Desk:
    """Where the host writes what a device is told of pairs, with zeros behind, and an event."""

    def __init__(self, device: torch.device) -> None:
        words = f.MANY.value * (f.PAIR.value + f.ZEROS.value // 2)
        self._written = torch.zeros(words, dtype=torch.int64, pin_memory=True)
        self._given = torch.empty(words, dtype=torch.int64, device=device)
        self.paper = self._written.numpy().view(np.uint8).data
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def give(self) -> torch.Tensor:
        """All that was written, on the device."""
        return self._given.copy_(self._written, non_blocking=True)


class _Group:
    """Pairs that the same launches compare, and their numbers once those are made."""

    def __init__(self, line: _Line) -> None:
        self.line = line
        self.pairs: list[_Pair] = []
        self.elements = self.size = 0
        self.numbers: Array | None = None
        self.desk: _Desk | None = None

    def add(self, pair: _Pair) -> None:
        pair.group, pair.head_at = self, self.size
        self.size += _HEAD + pair.count
        self.elements += pair.elements
        self.pairs.append(pair)


class _Line:
    """Pairs of the same formats wait here until they are many, or somebody waits for them."""

    def __init__(self, device: torch.device, r: torch.dtype, c: torch.dtype, even: bool) -> None:
        self._device, self.fast = device, r == c == torch.float16
        each = 16 // max(r.itemsize, c.itemsize)
        kinds = {"R": f.KINDS[r], "C": f.KINDS[c]}
        form = {**kinds, "FAST": self.fast}
        self._survey = _Kernel(k.survey, SURVEY_WARPS, **kinds, PLACES=PLACES)
        lanes = {"LANES": BLOCK // each, "EACH": each}
        self._look = _Kernel(k.look, WARPS, **form, EVEN=even, PART=PART, **lanes)
        blocks = {"PART": PART, "BLOCK": SETTLE, "PROGRAMS": SETTLERS}
        self._settle = _Kernel(k.settle, SETTLE_WARPS, **form, **blocks)
        self._waiting = _Group(self)
        self._lock = Lock()
        self._desks: list[_Desk] = []

    def put(self, pair: _Pair) -> Reducing:
        """Begin to compare a pair: it can be waited for."""
        with self._lock:
            group = self._waiting
            group.add(pair)
            if group.elements >= TOGETHER or len(group.pairs) == f.MANY.value:
                self._launch()
        return pair

    def numbers(self, group: _Group) -> Array:
        """Those of all its pairs, waited for."""
        with self._lock:
            self._launch()  # others too: they are compared while these are read
            if group.desk is not None:
                group.desk.done.synchronize()
                self._desks.append(group.desk)
                group.desk = None
        assert group.numbers is not None
        return group.numbers

    def _launch(self) -> None:
        """Send all that wait on their way."""
        if self._waiting.pairs:
            group, self._waiting = self._waiting, _Group(self)
            with _on(self._device):
                self._compare(group)
            group.pairs = []

    def _compare(self, group: _Group) -> None:
        desk = self._desks.pop() if self._desks else _Desk(self._device)
        table_at, units, surveyors = group.size, 0, 0
        for number, pair in enumerate(group.pairs):
            pair.tell(desk.paper, number, table_at)
            table_at += f.LINE.value * (pair.units + SETTLERS)
            units, surveyors = max(units, pair.units), max(surveyors, pair.surveyors)
        pairs, index = len(group.pairs), self._device.index
        stream = _stream(index, torch._C._cuda_getCurrentRawStream(index))
        given = desk.give()
        out = torch.empty(table_at, dtype=torch.float64, device=self._device)
        self._survey(stream, surveyors, pairs, given, out)
        self._look(stream, -(-units // UNITS), pairs, given, out)
        self._settle(stream, SETTLERS, pairs, given, out)
        numbers = torch.empty(group.size, dtype=torch.float64, pin_memory=True)
        numbers.copy_(out[: group.size], non_blocking=True)
        desk.done.record(stream)
        group.numbers, group.desk = numbers.numpy(), desk


@cache
def _line(device: torch.device, r: torch.dtype, c: torch.dtype, even: bool) -> _Line:
    return _Line(device, r, c, even)


class _Kernel:
    """A kernel for certain formats; after the first launch Triton is not asked which one it is.

    Asking takes several times as long as launching. All that is given is a tensor as PyTorch
    allocates them, so that what fits one launch fits all.
    """

    def __init__(self, function: Any, warps: int, **constants: Any) -> None:
        self._function, self._constants = function, constants
        self._options = {"num_warps": warps, "enable_fp_fusion": function is not k.settle}
        self._compiled: Any = None

    def __call__(self, stream: torch.cuda.Stream, x: int, y: int, *tensors: torch.Tensor) -> None:
        """Launch on the device's current stream, which is told since asking takes long, too."""
        try:
            if self._compiled is not None:
                run = self._compiled[x, y, 1]
                run(*tensors, *self._constants.values(), stream=stream.cuda_stream)
        except TypeError:  # another Triton, which wants no constants here
            self._compiled = None
        if self._compiled is None:
            self._compiled = self._function[x, y](*tensors, **self._constants, **self._options)


@cache
def _stream(index: int, raw: int) -> torch.cuda.Stream:
    """The current one of a device, with this handle: making an object for it takes longer than
    what it is needed for."""
    return torch.cuda.current_stream(index)


def _on(device: torch.device) -> Any:
    here = device.type != "cuda" or torch.cuda.current_device() == device.index
    return nullcontext() if here else torch.cuda.device(device)


def read(numbers: Array, count: int, width: int, fast: bool) -> Reduced | None:
    """The numbers of `count` rows by name; None where something is left to the host.

    `fast` tells that both states are float16, for which float32 is wide enough.
    """
    # fmt: off
    (
        dd, rc, abs_d, *above, far, poison, beyond, max_rel, exceeded,
        first, scale, floor, rr, cc, _, least_rel, _, least_rtol, place, worst_r, worst_c,
    ) = numbers[:_HEAD].tolist()
    # fmt: on
    lost = 0 < floor < _TINY or 0 < least_rel < _TINY or 0 < least_rtol < _TINY
    wide = fast or (rr > _LOW and cc > _LOW and (floor > 0 or least_rtol == 0))
    elements = count * width
    p99 = _percentile(first, above, far, elements)
    if poison or lost or not wide or p99 is None:
        return None
    if dd < 1e-3 * rr:
        # Of states this near, the small difference says more than a large product.
        rc = (rr + cc - dd) / 2
    sums = Sums(
        count=elements,
        abs_d=abs_d,
        dd=dd,
        rr=rr,
        cc=cc,
        rc=rc,
        max_abs=abs(worst_c - worst_r),
        max_rel=max_rel,
        worst_at=divmod(int(place), width),
        exceeded=exceeded,
        mismatched=int(beyond),
        ulp_max=far,
        ulp_p99=p99,
        row_l2=[numbers[_HEAD:]],
    )
    return Reduced(sums, scale, (worst_r, worst_c))


def _percentile(first: float, above: list[float], far: float, elements: int) -> float | None:
    """The 99th of the distances, as driftwalk.measure.ulp has it; None if it was not counted for.

    `above` are the numbers of distances from each edge on, `first` the first edge.
    """
    most = elements - 0.99 * elements
    if above[0] <= most:
        return 0.0 if first <= 1 else None
    edges = _edges(first)
    for edge, more in zip(edges, above[1:], strict=False):
        if more <= most:
            return min(edge, far)
    return min(edges[-2], far) if far < edges[-1] else None


@lru_cache(maxsize=256)
def _edges(first: float) -> tuple[float, ...]:
    """The distances that were counted from, and the next."""
    edges = [first]
    for _ in range(f.EDGES.value):
        edges.append(max(start_of(bucket_of(edges[-1]) + 1), edges[-1] + 1))
    return tuple(edges)
