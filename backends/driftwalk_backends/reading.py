"""Weights that lie in mapped files: read before they are needed, and let go where they do not fit.

A run goes through all weights in the same order. Left to itself, the system reads a page when
somebody waits for it, and lets go of the pages that were used longest ago: of a model that is
larger than memory, those are the ones that the next run begins with, so that every run reads all of
it again. Here a thread asks for the weights that come next, and of what does not fit it lets go of
those just used: the others stay, and the next run finds them.

All of it is advice (madvise), which changes no number: without it runs take longer, that is all.
"""

from __future__ import annotations

import ctypes
import mmap
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch

AHEAD = 2**30
"""Bytes that are asked for before they are needed."""

SHARE = 0.8
"""The part of the memory that is free which weights may stay in."""

_WILL_NEED, _PAGE_OUT = 3, 21
_MAPS, _MEMORY = Path("/proc/self/maps"), Path("/proc/meminfo")
_PAGE = mmap.PAGESIZE

Advice = tuple[int, int, int]
"""An address, bytes, and what is said of them."""


@dataclass(frozen=True)
class Piece:
    """The memory of one weight."""

    start: int
    size: int
    stays: bool
    """Whether there is room for it from one run to the next."""


def in_order(weights: Iterable[torch.Tensor], room: float) -> list[Piece]:
    """The pieces of mapped files that weights lie in, the first ones within the room for them."""
    mapped = _mappings()
    pieces: dict[int, Piece] = {}
    for weight in weights:
        start = weight.data_ptr()
        at = bisect_right(mapped, (start, float("inf"))) - 1
        if at >= 0 and start < mapped[at][1] and start not in pieces:
            room -= weight.nbytes
            pieces[start] = Piece(start, weight.nbytes, room >= 0)
    return list(pieces.values())


def free_memory() -> int:
    """Bytes that are free, or hold what can be read again; 0 where the system does not say."""
    try:
        lines = _MEMORY.read_text().splitlines()
    except OSError:
        return 0
    kilobytes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(next(kilobytes, "0")) * 1024


def _mappings() -> list[tuple[int, float]]:
    """Where the files of weights lie in memory."""
    found = []
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        if line.endswith(".safetensors"):
            start, _, end = line.split(maxsplit=1)[0].partition("-")
            found.append((int(start, 16), float(int(end, 16))))
    return sorted(found)


class Reading:
    """What is known of a model's weights in files, and a thread that tells the system."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        self._pieces = in_order(weights, SHARE * free_memory())
        places = sorted((piece.start, index) for index, piece in enumerate(self._pieces))
        self._starts, self._order = [start for start, _ in places], [index for _, index in places]
        self._last, self._asked = -1, -1
        self._queue: SimpleQueue[Advice | None] = SimpleQueue()
        if self._pieces:
            Thread(target=_advise, args=(self._queue,), daemon=True, name="reading").start()
            _readings.append(self)

    def stop(self) -> None:
        if self in _readings:
            _readings.remove(self)
        self._queue.put(None)

    def meet(self, address: int) -> None:
        """A weight is about to be read: what follows is asked for, what came before may go."""
        now, last = self._index(address), self._last
        if now is None or now == last:
            return
        if now < last:
            if last - now <= len(self._pieces) // 2:  # in another order than they are listed
                return
            self._asked = now  # the next run begins
        self._last = now
        for index in range(max(0, last), max(now, last + 1)):
            if not self._pieces[index].stays:
                self._tell(index, _PAGE_OUT)
        ahead, index = 0, now
        while ahead < AHEAD and index + 1 < len(self._pieces):
            index += 1
            ahead += self._pieces[index].size
            if index > self._asked:
                self._asked = index
                self._tell(index, _WILL_NEED)

    def _index(self, address: int) -> int | None:
        at = bisect_right(self._starts, address) - 1
        if at < 0 or address >= self._starts[at] + self._pieces[self._order[at]].size:
            return None
        return self._order[at]

    def _tell(self, index: int, what: int) -> None:
        piece = self._pieces[index]
        self._queue.put((piece.start, piece.size, what))


_readings: list[Reading] = []


def announce(weight: torch.Tensor) -> None:
    """Say that a tensor is about to be read: weights of a mapped file are followed."""
    if not _readings or weight.device.type != "cpu":
        return
    try:
        address = weight.data_ptr()
    except RuntimeError:  # wrapped by vmap: there is no memory to speak of
        return
    for reading in _readings:
        reading.meet(address)


def _advise(queue: SimpleQueue[Advice | None]) -> None:
    """Tell the system, which may wait for a disk meanwhile."""
    madvise = ctypes.CDLL(None).madvise
    while (advice := queue.get()) is not None:
        address, size, what = advice
        start = -(-address // _PAGE) * _PAGE if what == _PAGE_OUT else address // _PAGE * _PAGE
        if (length := address + size - start) > 0:
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(what))
