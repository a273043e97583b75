"""What a run of a model takes beside its weights, found out by running it: states, activations.

The run is one in float32 whose weights are lent and whose states are let go at once, so that it
takes less than any other. Every tensor that is alive counts as if it were in float64, the widest
run there is: that of the truth.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from driftwalk.budget import Needs
from driftwalk.spec import Spec
from driftwalk.states import Probe

from .calls import Inputs
from .choices import COMPARISONS, RANKINGS
from .constants import MASK_SIZE
from .hooks import TensorSink
from .layout import Layout
from .lending import PIECE, Lent
from .loaded import LoadedModel
from .op_values import leaves_of, tensors_of
from .torch_eager import TorchEager
from .widening import SUMS, Args, EachOp, Kwargs

_WIDE = 8
"""Bytes of a number in the truth."""
_NOISE, _WHOLE, _HUGE = 3, 4, 7
"""Tensors of the size of its result that an operation of the truth with roundoffs takes beside it
(jitter.py): its noise; what of it is a whole number; and where a sum has a mask of huge numbers in
it, what these absorb (widening.py)."""


def needs_of(model: LoadedModel, probe: Probe, depth: str) -> Needs:
    """Run a model on a probe, and say what that takes."""
    weights = [w.numel() for w in model.module.parameters() if w.is_floating_point()]
    with _Metered(Spec("torch", "cpu", "fp32", {"stream": "on"}), model) as backend:
        backend.look(depth)
        states = backend.state_sizes(probe)
        backend.look("module")
        inside = backend.state_sizes(probe)
        return Needs(
            states=tuple(sorted(states, reverse=True)),
            inside=sum(inside),
            activations=backend.meter.peak,
            chooses=backend.meter.chooses,
            widest=min(PIECE, max(weights, default=0)),
        )


class _Metered(TorchEager):
    """Eager PyTorch, with attention as plain matrix products, as the truth has it."""

    def __init__(self, spec: Spec, model: LoadedModel) -> None:
        super().__init__(spec, model)
        self.meter = _Meter()

    def state_sizes(self, probe: Probe) -> list[int]:
        """Elements of all states of a run."""
        sizes: list[int] = []
        self.stream(probe, lambda state: sizes.append(state.elements()))
        return sizes

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        with sdpa_kernel(SDPBackend.MATH), self.meter.running(module, inputs):
            return super()._watched(module, inputs, layout, sink)


class _Meter(EachOp):
    """Follows every tensor that operations make until it is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        """Bytes of tensors that were alive at once, each number in float64."""
        self.chooses = False
        """Whether the model ranks or compares numbers that it computed."""
        self._alive: dict[int, int] = {}
        self._references: dict[int, weakref.ref[Any]] = {}
        self._total = 0

    @contextmanager
    def running(self, module: nn.Module, inputs: Inputs) -> Iterator[None]:
        """One run; weights and inputs are none of its tensors."""
        held = (*module.parameters(), *module.buffers(), *tree_leaves(dict(inputs)))
        plain = (t for t in held if isinstance(t, torch.Tensor) and not isinstance(t, Lent))
        self._alive = dict.fromkeys((t.untyped_storage()._cdata for t in plain), 0)
        self._total = 0
        with self:
            yield
        self._alive = {}

    def op(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if func._overloadpacket.__name__ in RANKINGS | COMPARISONS:
            self.chooses |= any(t.is_floating_point() for t in tensors_of(args, kwargs))
        given = func(*args, **kwargs)
        for leaf in leaves_of(given):
            if made := self._follow(leaf):
                self.peak = max(self.peak, self._total + made * _beside(func, leaf))
        return given

    def _follow(self, value: Any) -> int:
        """Bytes of a tensor that was not there before."""
        if not isinstance(value, torch.Tensor) or isinstance(value, Lent):
            return 0
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return 0
        if value.is_floating_point():
            size = size // value.dtype.itemsize * _WIDE
        alive = self._alive

        def gone(_: Any) -> None:
            if alive is self._alive and key in alive:
                self._total -= alive.pop(key)
                references.pop(key, None)

        references = self._references
        references[key] = weakref.ref(storage, gone)
        alive[key] = size
        self._total += size
        return size


def _beside(func: Any, result: torch.Tensor) -> int:
    """How many tensors of its size a result may need beside it."""
    if not result.is_floating_point() or not result.numel():
        return 0
    if func in SUMS and bool(result.abs().amax() >= MASK_SIZE):
        return _HUGE
    return _WHOLE if bool((result.frac() == 0).any()) else _NOISE
