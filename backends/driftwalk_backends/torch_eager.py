"""The `torch` backend: eager PyTorch on the CPU or a GPU, in fp64, fp32, fp16 or bf16."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast, get_args

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.chosen import Choice
from driftwalk.decoding import Beams, Decoding
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError, UsageError
from driftwalk.names import is_output, layer_of
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from .caches import unrounded
from .calls import Inputs, call
from .chosen import choosing
from .decoding import decoded, restored, searched, watched_decoding
from .depth import BLOCKS
from .eager_run import as_arrays, between, stamp, wait, watched
from .formats.declared import declared_by
from .formats.restoring import in_float
from .given import GivenModel
from .hooks import TensorSink
from .layout import Layout
from .lending import Lend
from .loaded import LoadedModel
from .tensors import from_numpy, to_numpy
from .torch_decoding import TorchDecoding

_STREAM: tuple[Lend, ...] = get_args(Lend)


class TorchEager(TorchDecoding):
    """Plain eager PyTorch: hooks on the blocks, everything else untouched."""

    def __init__(self, spec: Spec, model: object) -> None:
        if another := {"compile", "ranges"} & spec.options.keys():
            raise UsageError(
                f"{spec}: {type(self).__name__} has no {min(another)}=... "
                "driftwalk.backend(spec, model) makes the backend that a spec names."
            )
        super().__init__(spec, model)
        usual = "large" if self._device.type == "cpu" else "off"
        self._lend = cast(Lend, spec.choice("stream", _STREAM, usual))
        self.calls: Callable[[nn.Module, Inputs], Any] = call
        """How the model is called: all of it, or a range of its blocks (block_ranges.py)."""

    @classmethod
    def around(
        cls, module: nn.Module, label: str = "", like: LoadedModel | None = None
    ) -> TorchEager:
        """A backend for a module as it is: its own dtypes, its own devices, nothing converted.

        `like` is the model that it is another implementation of.
        """
        given = GivenModel(module, label, like)
        return cls(Spec("torch", str(given.device), given.mixture.dtype), given)

    def shows(self, model: LoadedModel) -> bool:
        """Whether its states prove what this model gives on its device."""
        options = self._attn or self._threads or self._tf32 or self._precision.flags
        plain = type(self) is TorchEager and not options
        whole = self._decoding is None or not self._decoding.chunks
        return plain and whole and self._model is model and self._look == BLOCKS

    def honest_model(self) -> LoadedModel | None:
        """For a module that was quantised: the model with the weights that it declares."""
        given = self._given
        if given is None or not given.quantised or given.like is None:
            return None
        return declared_by(given.module, given.like)

    def leaving_out(self, modules: Sequence[str]) -> nn.Module:
        """A copy of a quantised module with some of its modules as the model has them."""
        given = self._given
        if given is None or given.like is None:
            raise BackendError(f"{self.spec} runs the model itself: there is nothing to leave out.")
        return in_float(given.module, given.like, modules)

    def search(self, probe: Probe, plan: Decoding, beams: int) -> tuple[Mapping[str, Array], Beams]:
        with self.at_work(probe) as (module, inputs, _):
            whole, made = searched(module, inputs, plan, beams)
            return {n: to_numpy(v) for n, v in whole.items() if n in probe.inputs}, made

    def restored(
        self, probe: Probe, plan: Decoding, given: Mapping[str, Array], sink: Sink
    ) -> None:
        with self.at_work(probe) as (module, inputs, layout):
            states = {name: from_numpy(array, self._device) for name, array in given.items()}

            def run(hand_on: TensorSink) -> Any:
                return restored(module, inputs, plan, layout, states, hand_on)

            as_arrays(run, sink)

    def weights_taken(self, lent: bool) -> int:
        """What its copy of the model takes on the host; nothing where it runs the model itself."""
        if self._given is not None and self._given.is_mixed:
            # Its yardstick is a copy in float32, parts of which are cast on the way (mixture.py).
            return 2 * sum(4 * weight.numel() for weight in self._given.module.parameters())
        if self._given is not None or self._device.type != "cpu":
            return 0
        return self._model.copied_bytes(self._dtype, self._attn, self._lend, lent)

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        if (plan := self._plan) is not None:
            return decoded(module, inputs, plan)
        return self.calls(module, inputs)

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        if (plan := self._plan) is not None:
            return watched_decoding(module, inputs, plan, layout, sink)
        return watched(module, layout, sink, partial(self.calls, module, inputs))

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """The time from one point to the next, in a run in which nothing is copied."""
        with self.at_work(probe) as (module, inputs, layout):
            stamps: list[tuple[str, Any]] = [("", stamp(*self._devices))]

            def note(point: Point, _: torch.Tensor) -> None:
                stamps.append((point.name, stamp(*self._devices)))

            watched(module, layout, note, partial(call, module, inputs))
            wait(*self._devices)
        return {name: between(before, after) for (_, before), (name, after) in pairwise(stamps)}

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Run each block on the *given* previous state; hand on what this model makes of it."""
        with self.at_work(probe) as (module, inputs, layout):
            at_once = unrounded(module, inputs)
            exchange = _exchanging(layout, given, sink)
            watched(module, layout, exchange, partial(self.calls, module, at_once))

    @property
    def chooses_nothing(self) -> bool:
        return self._plan is not None

    def chosen(
        self,
        probe: Probe,
        sink: Sink,
        given: Mapping[str, Array] | None = None,
        forced: Mapping[str, Array] | None = None,
    ) -> tuple[Choice, ...]:
        """What the model chooses in a run, in the order of execution; see chosen.py."""
        if self.chooses_nothing:
            return ()
        with self.at_work(probe) as (module, inputs, layout):
            exchange = _exchanging(layout, given or {}, sink)
            with choosing(module, forced or {}) as mode:

                def meet(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
                    mode.reached(layer_of(point.name) or point.name)
                    return exchange(point, tensor)

                if given is None:
                    self._watched(module, inputs, layout, meet)
                else:
                    at_once = unrounded(module, inputs)
                    watched(module, layout, meet, partial(self.calls, module, at_once))
        return mode.choices


def _exchanging(layout: Layout, given: Mapping[str, Array], sink: Sink) -> TensorSink:
    """Hands states on, and puts the given ones in their place."""
    walked = {point.name for stack in layout.stacks for point in stack.points}

    def exchange(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        sink(State(point, to_numpy(tensor)))
        array = given.get(point.name)
        if array is None:
            return None
        # Nothing follows an output; inside a block, another implementation may go another way.
        alike = array.shape == tuple(tensor.shape)
        if point.name not in walked and (is_output(point.name) or not alike):
            return None
        if not alike:
            shapes = f"{array.shape} at {tuple(tensor.shape)}"
            raise UsageError(f"Cannot replay a state of shape {shapes}.")
        return from_numpy(array, tensor.device, tensor.dtype)

    return exchange
