"""States from a GPU to the host, through memory that the GPU can write to by itself.

Left to itself, CUDA copies to fresh memory at 1 to 2 GB/s: a single thread gets that memory page by
page. Here threads do, while the GPU writes the next piece.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import cycle
from threading import Lock

import torch

from driftwalk.workers import in_threads

PIECE = 1 << 25
"""Bytes that travel at a time."""

_SHARE = 1 << 21
"""Bytes that a thread copies at a time."""

_one_at_a_time = Lock()


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host."""
    rooms = _rooms() if tensor.is_cuda and tensor.nbytes >= _SHARE else ()
    if not rooms or tensor.is_complex() or tensor.is_quantized:
        return tensor.cpu()
    source = tensor.contiguous()
    made = torch.empty_like(source, device="cpu")
    there, here = (one.reshape(-1).view(torch.uint8) for one in (source, made))
    with _one_at_a_time:
        for first, piece in zip(range(0, len(here), PIECE), pieces(there, rooms), strict=True):
            _put(piece, here[first : first + PIECE])
    return made


def pieces(flat: torch.Tensor, rooms: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The bytes of a tensor of a GPU, one piece after the other in the rooms on the host.

    A piece is good until the next is asked for, and the one after it is on its way.
    """
    begun: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
    for first, room in zip(range(0, len(flat), PIECE), cycle(rooms), strict=False):
        if len(begun) == len(rooms):
            yield _arrived(*begun.popleft())
        piece = flat[first : first + PIECE]
        place = room[: len(piece)].copy_(piece, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        begun.append((place, event))
    for one in begun:
        yield _arrived(*one)


def _arrived(place: torch.Tensor, event: torch.cuda.Event) -> torch.Tensor:
    event.synchronize()
    return place


def _put(piece: torch.Tensor, place: torch.Tensor) -> None:
    given, out = piece.numpy(), place.numpy()

    def look(first: int) -> None:
        out[first : first + _SHARE] = given[first : first + _SHARE]

    in_threads(look, range(0, len(out), _SHARE))


def pinned(count: int) -> tuple[torch.Tensor, ...]:
    """Rooms that a GPU can write to by itself."""
    return tuple(torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(count))


@cache
def _rooms() -> tuple[torch.Tensor, ...]:
    """Memory that a GPU can write to; none where the system gives none of that kind."""
    try:
        return pinned(2)
    except RuntimeError:
        return ()
