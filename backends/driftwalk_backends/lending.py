"""The weights of a large model in another dtype, or on another device, without a copy of the model.

A copy's modules hold `Lent` weights: each has the shape, dtype and device that the copy needs, and
no memory. An operation that reads one is given its numbers, which are made for that operation and
let go. What a model takes beside its own weights is then its largest weight, not twice or four
times the whole; and weights that lie in a file (mapped, sources.py) are read as they are needed.

Casting a weight whenever it is read gives the same numbers as casting it once: every state is the
same as that of a copy, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.utils._pytree import tree_map

from . import scratch
from .op_values import called_with
from .reading import announce
from .widening import Args, Kwargs, is_composite

aten = torch.ops.aten

LARGE = 2**30
"""Bytes of weights: models below are copied, which is faster."""

SMALLEST = 2**14
"""Elements of a weight that is lent; smaller ones are copied."""

PIECE = 2**26
"""Elements of a matrix that are made at a time where one product reads more: a head of a large
vocabulary in float64 would be the largest thing in memory."""

ROOM, MOST = 0.5, 0.9
"""The share of a device's free memory that weights may take which nobody has put there; and the
share that those of a side may take, which are streamed to it otherwise."""

_LOOKUPS = {aten.embedding.default, aten.index_select.default, aten.index.Tensor}
"""Operations that take rows of their first tensor, and change no number."""

_SHAPES = {aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default}
_SHAPES |= {aten.full_like.default, aten.new_empty.default, aten.new_zeros.default}
"""Operations that read no number."""

_CLOSED = (nn.RNNBase, torch.jit.ScriptModule)

_PRODUCTS = {aten.mm.default, aten.addmm.default}

Lend = Literal["on", "off", "large"]
"""Which models' weights are lent to a copy: all, none, or those of large ones."""

Wanted = Callable[[nn.Parameter], torch.dtype]
"""What a weight is to be in."""


class Lent(torch.Tensor):
    """A weight that lies elsewhere: each operation is given numbers that are made for it."""

    source: torch.Tensor
    """The weight as it is stored."""
    _is_param = True  # what makes it an nn.Parameter to whoever asks

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Lent({tuple(self.shape)}, {self.dtype}, {self.device})"

    def numbers(self) -> torch.Tensor:
        """The weight itself, for an operation that `scratch.run` runs; cast where it is needed."""
        announce(self.source)
        return scratch.cast(self.source.to(self.device), self.dtype)

    def _like(self, source: torch.Tensor) -> Lent:
        return lent(source, self.dtype, self.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args and isinstance(args[0], Lent) else None
        if first is not None:
            if func in _SHAPES:
                stand_in = torch.empty((), dtype=first.dtype, device=first.device)
                return func(stand_in.expand(first.shape), *args[1:], **kwargs)
            if func.is_view and func is not aten.view.dtype:
                return tree_map(first._like, func(first.source, *args[1:], **kwargs))
            if func in _LOOKUPS:
                here = tree_map(lambda item: _on(item, first.source.device), (args[1:], kwargs))
                taken = func(first.source, *here[0], **here[1])
                return taken.to(first.device).to(first.dtype)
        if is_composite(func):
            return func.decompose(*args, **kwargs)
        if func in _PRODUCTS and _is_vast(args[-1]):
            return _in_pieces(func, args, kwargs)
        return scratch.run(lambda: called_with(_numbers, func, args, kwargs))


def lent(source: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Lent:
    """A weight in another dtype, or on another device, that has no memory of its own."""
    made: Lent = torch.Tensor._make_wrapper_subclass(
        Lent, source.shape, strides=source.stride(), dtype=dtype, device=device
    )
    made.source = source
    return made


def _numbers(value: Any) -> Any:
    return value.numbers() if isinstance(value, Lent) else value


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _is_vast(value: Any) -> bool:
    return isinstance(value, Lent) and value.numel() > PIECE


def _in_pieces(func: Any, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A product with a matrix, so many columns of it at a time; a bias has a number for each."""
    *bias, left, matrix = args
    step, width = max(1, PIECE // matrix.shape[0]), matrix.shape[1]

    def piece(start: int) -> torch.Tensor:
        some = slice(start, start + step)
        own = [one[..., some] if one.shape[-1:] == (width,) else one for one in bias]
        given = (*own, left, matrix._like(matrix.source[:, some]))
        return scratch.run(lambda: func(*map(_numbers, given), **kwargs))  # type: ignore[no-any-return]

    return torch.cat([piece(start) for start in range(0, width, step)], 1)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor is read from: of a lent weight, where it lies."""
    return tensor.source if isinstance(tensor, Lent) else tensor


def is_lent(module: nn.Module) -> bool:
    """Whether a copy holds weights that are lent to it."""
    return any(isinstance(weight, Lent) for weight in module.parameters())


def is_large(module: nn.Module) -> bool:
    """Whether a model is too large to be copied without need."""
    return sum(weight.nbytes for weight in module.parameters()) >= LARGE


class Weights:
    """The weights of one model, as its copies need them; what was made for one serves all."""

    any_size = False
    """Whether models count as large whatever their size."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[tuple[int, torch.dtype, torch.device], nn.Parameter]
        self._made = WeakValueDictionary()

    def forget(self) -> bool:
        """Whoever has copies keeps them; none is handed on, since the model may have changed.

        Whether there were any.
        """
        made = bool(self._made)
        self._made.clear()
        self.any_size = False
        scratch.free()
        return made

    def placed(
        self, module: nn.Module, wanted: Wanted, device: torch.device, lend: Lend
    ) -> dict[int, nn.Parameter]:
        """What is to stand in the place of the weights of a large model in a copy, by their ids.

        Weights that are not there in this dtype are lent, or made. Small models are copied.
        """
        if not self.lends(module, lend):
            return {}
        weights = list(lendable(module))
        lends = lend != "off" or not self._fit(weights, device, wanted, MOST)
        moves = device.type != "cpu" and self._fit(weights, device, lambda w: w.dtype, ROOM)
        return {
            id(weight): self._placed(weight, wanted(weight), device, lends, moves)
            for weight in weights
        }

    def lends(self, module: nn.Module, lend: Lend) -> bool:
        """Whether a model is large enough for its weights to be lent, or shared among copies."""
        return lend == "on" or self.any_size or is_large(module)

    def spread(
        self, module: nn.Module, wanted: Wanted, devices: Mapping[int, torch.device]
    ) -> dict[int, nn.Parameter]:
        """The same for a copy on several devices, by the weights' ids: what lies on the CPU is
        lent, and all else made."""
        if not is_large(module):
            return {}
        places = [(w, devices[id(w)]) for w in lendable(module) if id(w) in devices]
        return {
            id(weight): self._placed(weight, wanted(weight), device, device.type == "cpu", False)
            for weight, device in places
        }

    def held(self, module: nn.Module, wanted: Wanted, device: torch.device) -> int:
        """The bytes that copies in these dtypes have on a device, which another one shares."""
        there = (self._made.get((id(w), wanted(w), device)) for w in module.parameters())
        return sum(weight.nbytes for weight in there if weight is not None)

    def _placed(
        self,
        weight: nn.Parameter,
        dtype: torch.dtype,
        device: torch.device,
        lends: bool,
        moves: bool,
    ) -> nn.Parameter:
        there = self._there(weight, dtype, device)
        if there is not None:
            return there
        if not lends:
            return self._make(weight, dtype, device)
        source = self._there(weight, weight.dtype, device)
        if source is None and moves:
            source = self._make(weight, weight.dtype, device)
            if weight.dtype == dtype:
                return source
        stored = weight.detach() if source is None else source
        return cast(nn.Parameter, lent(stored, dtype, device))

    def _there(
        self, weight: nn.Parameter, dtype: torch.dtype, device: torch.device
    ) -> nn.Parameter | None:
        """The weight in this dtype on this device, where somebody has it."""
        if (weight.dtype, weight.device) == (dtype, device):
            return nn.Parameter(weight.detach(), requires_grad=False)
        return self._made.get((id(weight), dtype, device))

    def _make(self, weight: nn.Parameter, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
        source = self._there(weight, weight.dtype, device)  # a device casts faster than it is given
        moved = weight.detach() if source is None else source.detach()
        made = nn.Parameter(moved.to(device).to(dtype), requires_grad=False)
        self._made[id(weight), dtype, device] = made
        return made

    def _fit(
        self, weights: list[nn.Parameter], device: torch.device, wanted: Wanted, share: float
    ) -> bool:
        """Whether a share of a GPU's free memory has room for all that it does not hold yet."""
        if device.type != "cuda":
            return True
        missing = [w for w in weights if self._there(w, wanted(w), device) is None]
        needed = sum(weight.numel() * wanted(weight).itemsize for weight in missing)
        return needed <= share * torch.cuda.mem_get_info(device)[0]


def lendable(module: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that can be lent; some modules keep theirs in lists of their own, or hidden."""
    closed = (part for part in module.modules() if isinstance(part, _CLOSED))
    kept = {id(weight) for part in closed for weight in part.parameters(recurse=False)}
    for weight in module.parameters():
        plain = type(weight) is nn.Parameter and weight.layout is torch.strided
        large = weight.is_floating_point() and weight.numel() >= SMALLEST
        if plain and large and id(weight) not in kept:
            yield weight


@contextmanager
def set_apart(module: nn.Module, placed: Mapping[int, nn.Parameter]) -> Iterator[None]:
    """The module without weights that are placed already, for whoever converts all that it has."""
    ids = {id(weight) for weight in placed.values()}
    apart = [
        (part._parameters, name, held)
        for part in (module.modules() if ids else ())
        for name, held in part._parameters.items()
        if id(held) in ids
    ]
    for holder, name, _ in apart:
        holder[name] = None
    try:
        yield
    finally:
        for holder, name, held in apart:
            holder[name] = held
