"""One model over several devices: which part of it lies where, and how a run gets through it.

Parts are the blocks of a model (modules with a number at the end of their name), and outside of
blocks every module that holds weights of its own. GPUs are filled with them one after another, in
the order in which the model lists its modules; what no GPU has room for lies on the CPU, and is
computed there. A weight that several parts hold lies with the first of them.

A part is given its inputs on its own device. Whatever else meets tensors of two devices (a model
that adds up what its parts gave, or reads the weights of a part itself) is an operation, and all
operations are seen (`on_one_device`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import chain, groupby
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .op_values import tensors_of, written
from .precision import named_tensors
from .widening import Args, EachOp, Kwargs

aten = torch.ops.aten

CPU = torch.device("cpu")

_TAKES_BOTH = {aten.copy_.default}
_TAKES_BOTH |= {aten._pack_padded_sequence.default, aten._pad_packed_sequence.default}
"""Operations that are meant to take tensors of two devices: a copy, and lengths on the CPU."""


Tensors = tuple[torch.Tensor, ...]
Size = Callable[[torch.Tensor], int]
"""The bytes that a tensor is to take."""


@dataclass(frozen=True)
class Placement:
    """Where a model lies."""

    parts: Mapping[str, torch.device]
    """The device of each part, by its path, in the order in which the model lists them."""
    tensors: Mapping[str, torch.device]
    """The device of each parameter and buffer, by each of its names."""

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """The devices that hold something, in order."""
        return tuple(dict.fromkeys(chain(self.parts.values(), self.tensors.values())))

    def __str__(self) -> str:
        """`model.embed_tokens to model.layers.11 on cuda:0, model.layers.12 to lm_head on cpu`."""
        if len(self.devices) == 1:
            return f"all on {self.devices[0]}"
        runs = []
        for device, run in groupby(self.parts.items(), lambda part: part[1]):
            first, *others = (path or "the model's own weights" for path, _ in run)
            to = f" to {others[-1]}" if others else ""
            runs.append(f"{first}{to} on {device}")
        return ", ".join(runs)


def placed(sizes: Sequence[int], room: Sequence[int]) -> list[int]:
    """The device of each part: the number of the GPU with that room, or one more for the CPU.

    GPUs are filled in order. A part that is larger than each of them lies on the CPU, and those
    that follow it go on where those before it were.
    """
    largest, left, now = max(room, default=0), list(room), 0
    places = []
    for size in sizes:
        if size > largest:
            places.append(len(room))
            continue
        while now < len(room) and size > left[now]:
            now += 1
        if now < len(room):
            left[now] -= size
        places.append(now)
    return places


def plan(module: nn.Module, size: Size, room: Mapping[torch.device, int]) -> Placement:
    """Where a model whose tensors are to take so many bytes lies, on GPUs that have so many."""
    parts = parts_of(module, size, max(room.values(), default=0))
    holders: dict[int, str] = {}
    sizes: Counter[str] = Counter()
    for path, tensors in parts.items():
        for tensor in tensors:
            if id(tensor) not in holders:
                holders[id(tensor)] = path
                sizes[path] += size(tensor)
    places = placed(list(sizes.values()), list(room.values()))
    devices = [*room, CPU]
    homes = {path: devices[place] for path, place in zip(sizes, places, strict=True)}
    lies = {key: homes[path] for key, path in holders.items()}
    return Placement(
        {path: _home(tensors, lies) for path, tensors in parts.items()},
        {name: lies[id(tensor)] for name, tensor in named_tensors(module) if id(tensor) in lies},
    )


def _home(tensors: Tensors, lies: Mapping[int, torch.device]) -> torch.device:
    """The device that most of a part lies on: it may share weights with others."""
    held: Counter[torch.device] = Counter()
    for tensor in tensors:
        held[lies[id(tensor)]] += tensor.nbytes
    return max(held, key=lambda device: held[device])


def parts_of(module: nn.Module, size: Size, largest: int) -> dict[str, Tensors]:
    """What each part of a model holds, by the part's path, in the order they are listed.

    What takes more than the largest room is taken apart, also in blocks. What a module holds beside
    the parts inside of it is a part, too.
    """
    parts: dict[str, Tensors] = {}
    inside = None
    for path, one in module.named_modules():
        if inside is not None and path.startswith(f"{inside}."):
            continue
        tensors: Tensors = (*one.parameters(), *one.buffers())
        in_block = any(step[-1:].isdigit() for step in path.split("."))
        fits = in_block and sum(map(size, tensors)) <= largest
        whole = fits or not one._modules or isinstance(one, torch.jit.ScriptModule)
        inside = path if whole else None
        if not whole:
            own = (*one._parameters.values(), *one._buffers.values())
            tensors = tuple(tensor for tensor in own if tensor is not None)
        if tensors:
            parts[path] = tensors
    return parts


def run_in_parts(module: nn.Module, placement: Placement) -> None:
    """Have each part of a model take its inputs on its own device.

    It is done inside of the part's `forward`: hooks see what the part before it gave.
    """
    for path, device in placement.parts.items():
        part = module.get_submodule(path)
        encloses = any(other.startswith(f"{path}.") for other in placement.parts)
        if path and not encloses and not isinstance(part, torch.jit.ScriptModule):
            part.forward = _given_on(device, part.forward)


def _given_on(device: torch.device, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        here = {name: _moved(value, device) for name, value in kwargs.items()}
        return forward(*(_moved(value, device) for value in args), **here)

    return run


def _moved(value: Any, device: torch.device) -> Any:
    """Tensors, also those in tuples; a list or a dict may be there to be written to."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        items = [_moved(item, device) for item in value]
        if any(new is not old for new, old in zip(items, value, strict=True)):
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


@contextmanager
def on_one_device() -> Iterator[None]:
    """What takes tensors of several devices is run where it writes to, or the largest one lies."""
    with _Functions(), _Operations():
        yield


class _Operations(EachOp):
    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if func in _TAKES_BOTH or not _are_apart(args, kwargs):
            return func(*args, **kwargs)
        return _together(func, args, kwargs, written(func, args, kwargs))


class _Functions(TorchFunctionMode):
    """For functions that refuse tensors of two devices before any operation is seen: attention."""

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            writes = str(getattr(func, "__name__", "")).endswith("_") or "out" in kwargs
            if writes or not _are_apart(args, kwargs):
                raise
        return _together(func, args, kwargs, [])


def _are_apart(args: Args, kwargs: Kwargs) -> bool:
    return len({tensor.device for tensor in tensors_of(args, kwargs)}) > 1


def _together(func: Any, args: Args, kwargs: Kwargs, targets: list[torch.Tensor]) -> Any:
    """The function, on the device of the first target, or of the largest tensor."""
    first = targets or [max(tensors_of(args, kwargs), key=lambda tensor: tensor.nbytes)]
    device = first[0].device

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return func(*tree_map(moved, args), **tree_map(moved, kwargs))
