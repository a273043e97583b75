"""States from a GPU to the host, through memory that the GPU can write to by itself.

Left to itself, CUDA copies to fresh memory at 1 to 2 GB/s: a single thread gets that memory page by
page. Here threads do, while the GPU writes the next piece.
"""

from __future__ import annotations

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
        begun: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]] = []
        for first, room in zip(range(0, len(there), PIECE), cycle(rooms), strict=False):
            piece, place = there[first : first + PIECE], here[first : first + PIECE]
            room[: len(piece)].copy_(piece, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            begun.append((room[: len(piece)], place, event))
            if len(begun) == len(rooms):
                _settle(*begun.pop(0))
        for one in begun:
            _settle(*one)
    return made


def _settle(room: torch.Tensor, place: torch.Tensor, event: torch.cuda.Event) -> None:
    """What has arrived, put where it belongs."""
    event.synchronize()
    given, out = room.numpy(), place.numpy()

    def look(first: int) -> None:
        out[first : first + _SHARE] = given[first : first + _SHARE]

    in_threads(look, range(0, len(out), _SHARE))


@cache
def _rooms() -> tuple[torch.Tensor, ...]:
    """Memory that a GPU can write to; none where the system gives none of that kind."""
    try:
        return tuple(torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    except RuntimeError:
        return ()
