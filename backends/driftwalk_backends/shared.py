"""What all blocks are handed beside the stream: rotary tables, masks, relative positions.

A fault in one of them shows in every layer, and would be blamed on the first. So they are states of
their own, where a backend is asked for them (depth.py): `shared.rotary.0`, `shared.mask` ...

Masks that are added to scores hold minus infinity or the least float there is, and a bool mask may
be meant either way round. Handed on is which positions are kept, as ones and zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from driftwalk.names import in_stack
from driftwalk.states import SHARED, Point

from .calls import forward_of
from .constants import DROPPED_SCORE
from .tensors import Slot, call_tensors
from .watching import BlockNumbers, hooked, same

Given = tuple[Slot, torch.Tensor | None]


@dataclass(frozen=True)
class Shared:
    """An argument that several blocks get."""

    name: str
    slot: Slot
    calls: tuple[int, ...]
    """Which calls of the stack get it; it is a state before the first of them."""
    mask: bool = False

    def point(self, prefix: str, block: str) -> Point:
        name = f"{SHARED}.{self.name}"
        where = ".".join(map(str, self.slot))
        return Point(in_stack(prefix, name), f"argument {where} of {block}")

    def state(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is compared: numbers as they are, of a mask which positions are kept."""
        if self.mask or tensor.dtype is torch.bool:
            dtype = tensor.dtype if tensor.is_floating_point() else torch.float32
            kept = _kept(tensor)
            upright, kept = _upright(kept).to(dtype), kept.to(dtype)
            return kept * upright + (1 - kept) * (1 - upright)  # runtimes choose among floats only
        return torch.where(tensor <= DROPPED_SCORE, torch.zeros_like(tensor), tensor)

    def instead(self, tensor: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The argument that has another state."""
        if torch.equal(self.state(tensor), state):
            return tensor
        if not self.mask and tensor.dtype is not torch.bool:
            return torch.where(tensor <= DROPPED_SCORE, tensor, state)
        kept = _kept(tensor)
        wanted = torch.where(_upright(kept), state > 0.5, state <= 0.5)
        if tensor.dtype is torch.bool:
            return wanted
        least = torch.full_like(tensor, torch.finfo(tensor.dtype).min)
        dropped = torch.where(kept, least, tensor)
        return torch.where(wanted, torch.where(kept, tensor, torch.zeros_like(tensor)), dropped)


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype is torch.bool else tensor > DROPPED_SCORE


def _upright(kept: torch.Tensor) -> torch.Tensor:
    """Whether true means kept: a position sees itself, and most positions are seen."""
    if kept.ndim > 1 and kept.shape[-1] == kept.shape[-2]:
        kept = kept.diagonal(dim1=-2, dim2=-1)
    return kept.to(torch.float32).mean() >= 0.5


class _Argument(NamedTuple):
    """One value of an argument, and the calls that got it."""

    slot: Slot
    name: str
    tensor: torch.Tensor | None
    calls: list[int]


class Arguments:
    """What the blocks of one stack were given beside the stream, in one run."""

    def __init__(self, stream: Slot | None) -> None:
        self._stream = stream
        self._seen: list[_Argument] = []

    def add(self, number: int, block: nn.Module, given: Iterable[Given]) -> None:
        """A call of a block, with all tensors and all None that it was given."""
        names = forward_of(block).positions
        for slot, tensor in given:
            if slot == self._stream or not _is_argument(slot, tensor):
                continue
            alike = (a for a in self._seen if a.slot == slot and _same(a.tensor, tensor))
            argument = next(alike, None)
            if argument is None:
                argument = _Argument(slot, _named(slot, names), tensor, [])
                self._seen.append(argument)
            argument.calls.append(number)

    def of_several(self) -> list[torch.Tensor]:
        """The tensors that several blocks were given."""
        several = [one.tensor for one in self._seen if len(one.calls) > 1]
        return [tensor for tensor in several if tensor is not None]

    def shared(self, states: Iterable[torch.Tensor]) -> tuple[Shared, ...]:
        """What several blocks got that is none of these states."""
        stream_states = list(states)
        shared: list[Shared] = []
        for slot, name, tensor, calls in self._seen:
            if len(calls) < 2 or any(_same(tensor, state) for state in stream_states):
                continue
            again = sum(other.slot == slot for other in shared)
            unique = f"{name}#{again + 1}" if again else name
            shared.append(Shared(unique, slot, tuple(calls), _is_mask(tensor)))
        return tuple(shared)


@contextmanager
def watch_shared(
    module: nn.Module, numbers: BlockNumbers, stream: Slot | None
) -> Iterator[Arguments]:
    """Watch what the blocks of a stack are given in one run."""
    arguments = Arguments(stream)

    def hook(path: str, block: nn.Module, args: Any, kwargs: Any) -> None:
        number = numbers.next(path)
        if number is not None:
            missing = [((name,), None) for name, value in kwargs.items() if value is None]
            arguments.add(number, block, [*call_tensors(args, kwargs), *missing])

    with hooked((module.get_submodule(p), partial(hook, p), None) for p in numbers.paths):
        yield arguments


def _is_argument(slot: Slot, tensor: torch.Tensor | None) -> bool:
    """Floats and bools; a mask may be missing here and be there elsewhere."""
    if tensor is None:
        return "mask" in str(slot[0])
    return tensor.is_floating_point() or tensor.dtype is torch.bool


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is b if a is None or b is None else same(a, b)


def _named(slot: Slot, parameters: Sequence[str]) -> str:
    """`rotary.0`, `mask`, or as the block calls its argument."""
    first, rest = slot[0], [str(key) for key in slot[1:]]
    if isinstance(first, int):
        first = parameters[first] if first < len(parameters) else f"argument{first}"
    name = str(first)
    if (name == "position_embeddings" and rest) or "rotary" in name or "rope" in name:
        name = "rotary"
    name = name.replace("attention_mask", "mask").replace("attn_mask", "mask")
    if name in ("layer", "embed", "norm"):  # what a stack called `shared` would have
        name = f"{name}_argument"
    return ".".join([name, *rest])


def _is_mask(tensor: torch.Tensor | None) -> bool:
    """Whether an argument only says which positions count: nothing, or out of the question."""
    if tensor is None or tensor.dtype is torch.bool:
        return True
    return bool(((tensor == 0) | (tensor <= DROPPED_SCORE)).all()) and bool(
        (tensor <= DROPPED_SCORE).any()
    )
