"""The yardstick of a mixture: the model in float32, but each point computed in a dtype of its own.

A run is cut at the points. What happens from one point to the next is computed in the dtype of the
latter: the parameters used there are rounded to it, what a block is given is cast to it, and every
op of a half-precision part is rounded as in emulated.py. A state is handed on in that dtype, or
coarser, where the mixture says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils._pytree import tree_map

from driftwalk.adapter import BackendInfo
from driftwalk.errors import BackendError
from driftwalk.mixture import Mixture
from driftwalk.other_inputs import arrays_in
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe

from .calls import Inputs, call_as_it_is, inputs_for, own_copies
from .eager_run import watched
from .emulated import HalfArithmetic, attention_for_floats, rounds_attention
from .hooks import TensorSink
from .layout import Layout
from .loaded import LoadedModel
from .op_mode import OpMode
from .precision import castable, converted
from .randomness import begin_alike
from .tensors import TORCH_DTYPES, from_call, is_float, stream_slot, with_call
from .torch_eager import TorchEager
from .watching import hooked
from .widening import Args, Kwargs

_HALVES = (torch.float16, torch.bfloat16)
_OUTSIDE = ""
"""Stands for the parameters of no block."""


class Mixed(TorchEager):
    """Plain eager PyTorch, each point in the dtype that a mixture gives it."""

    name: ClassVar[str] = "mixed"
    draws_as_float32: ClassVar[bool] = True
    options: ClassVar[Mapping[str, str]] = {}

    def __init__(self, mixture: Mixture, model: LoadedModel, device: str = "cpu") -> None:
        strange = {*mixture.dtypes.values(), *mixture.stored.values()} - TORCH_DTYPES.keys()
        if strange:
            raise BackendError(f"there is no yardstick for a mixture with {min(strange)!r}.")
        super().__init__(Spec("torch", device, "fp32"), model)
        self.spec = Spec("mixed")
        self._wanted = mixture
        self._rounds = _Rounds(rounds_attention(self._model))

    @property
    def info(self) -> BackendInfo:
        wanted, made = self._wanted, super().info
        flags = {**made.flags, "casts": wanted.casts} if wanted.casts else made.flags
        return replace(
            made, flags=flags, dtype=wanted.dtype, dtypes=wanted.dtypes, stored=wanted.stored
        )

    def _open(self) -> nn.Module:
        if self._module is None:  # a copy: its parameters are cast on the way
            self._module = converted(self._model.module, "fp32", str(self._device))
        return self._module

    def _inputs(self, module: nn.Module, probe: Probe) -> dict[str, Any]:
        return inputs_for(module, probe, self._device)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        with super()._arithmetic(), attention_for_floats(self._device), self._rounds:
            yield

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        layout = self._find_layout(module, inputs)
        return self._watched(module, inputs, layout, lambda point, tensor: None)

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        own = own_copies(inputs)
        self._rounds.inputs = {id(tensor): tensor for tensor in arrays_in(own)}
        course = _Course(module, layout, self._wanted, self._rounds, sink)
        blocks = dict.fromkeys(path for stack in layout.stacks for path in stack.blocks)
        try:
            with hooked([(module.get_submodule(path), course.enter, None) for path in blocks]):
                begin_alike()
                return watched(module, layout, course.meet, partial(call_as_it_is, module, own))
        finally:
            course.end()


class _Course:
    """One run: which point is on its way, and what is to be cast for it."""

    def __init__(
        self, module: nn.Module, layout: Layout, mixture: Mixture, rounds: _Rounds, sink: TensorSink
    ) -> None:
        self._points = layout.points
        self._names = {point.name for point in layout.points}
        self._mixture = mixture
        self._rounds = rounds
        self._sink = sink
        self._next = 0
        blocks = {path for stack in layout.stacks for path in stack.blocks}
        self._weights: dict[str, list[tuple[torch.Tensor, torch.Tensor, Callable[..., bool]]]]
        """Each parameter of a block, its original numbers, and in which dtypes it may be."""
        self._weights = defaultdict(list)
        self._cast: dict[str, torch.dtype] = {}
        """Blocks, and what is outside of all, in the dtype that they were last needed in."""
        for name, tensor, fits in castable(module):
            owner = next((path for path in blocks if name.startswith(f"{path}.")), _OUTSIDE)
            self._weights[owner].append((tensor, tensor.data, fits))
        self._begin()

    def _dtype(self, number: int) -> torch.dtype:
        """In what the point of this number is computed; after the last, as that one."""
        point = self._points[min(number, len(self._points) - 1)]
        return TORCH_DTYPES[self._mixture.at(point.name)]

    def _begin(self) -> None:
        """Cast what the next point is made with."""
        self._rounds.dtype = dtype = self._dtype(self._next)
        if self._next == len(self._points):
            return
        module = self._points[self._next].module
        owner = module if module in self._weights else _OUTSIDE
        if self._cast.get(owner) != dtype:
            self._cast[owner] = dtype
            for tensor, original, fits in self._weights[owner]:
                tensor.data = original.to(dtype) if fits(dtype) else original

    def enter(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        """Cast all that a block is given; this hook comes before the one that sees `embed`."""
        number, slot = min(self._next, len(self._points) - 1), stream_slot(args, kwargs)
        first = self._points[number].name.rpartition(".")[2] == "embed"
        dtype = self._dtype(number + 1 if first else number)
        cast = tree_map(lambda item: _within(item, dtype), (tuple(args), dict(kwargs)))
        if slot is None:
            return cast
        stream = from_call(args, kwargs, slot)
        # Before the first block it is a state, to be seen as it is.
        return with_call(cast[0], cast[1], slot, stream if first else stream.to(dtype))

    def meet(self, point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        """Hand a state on, in the dtype it is handed on in, and go on in that of the next."""
        if point.name not in self._names:
            self._sink(point, tensor)
            return None
        if self._next >= len(self._points) or point.name != self._points[self._next].name:
            raise BackendError(
                f"{point.name} is made out of turn, so that a run cannot be cut at its points; a "
                "mixture of dtypes cannot be followed in this model."
            )
        stored = TORCH_DTYPES.get(self._mixture.stored.get(point.name, ""))
        given = tensor if stored is None else tensor.to(stored)
        self._sink(point, given)
        self._next += 1
        self._begin()
        handed = given.to(self._rounds.dtype)
        return None if handed is tensor else handed

    def end(self) -> None:
        self._rounds.dtype = torch.float32
        for weights in self._weights.values():
            for tensor, original, _ in weights:
                tensor.data = original


class _Rounds(OpMode):
    """Rounds to the dtype of the moment; float inputs of the model are cast where they are used."""

    def __init__(self, rounds_attention: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._halves = {dtype: HalfArithmetic(dtype, rounds_attention) for dtype in _HALVES}
        self.dtype = torch.float32
        self.inputs: Mapping[int, torch.Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        args, kwargs = tree_map(self._cast_input, args), tree_map(self._cast_input, kwargs or {})
        if self.dtype not in _HALVES:
            return func(*args, **kwargs)
        return self._halves[self.dtype].__torch_dispatch__(func, types, args, kwargs)

    def _cast_input(self, value: Any) -> Any:
        is_input = is_float(value) and self.inputs.get(id(value)) is value
        return value.to(self.dtype) if is_input else value


def _within(value: Any, dtype: torch.dtype) -> Any:
    """A float tensor in a dtype; "minus infinity" of a mask stays a number, as in that dtype's."""
    if not is_float(value):
        return value
    room = torch.finfo(dtype)
    if torch.finfo(value.dtype).max > room.max:
        value = torch.where(value.isfinite(), value.clamp(room.min, room.max), value)
    return value.to(dtype)
