"""The `torch` backend: eager PyTorch on the CPU or a GPU, in fp64, fp32, fp16 or bf16."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from driftwalk.adapter import Sink
from driftwalk.dtypes import Array
from driftwalk.errors import UsageError
from driftwalk.names import is_output
from driftwalk.spec import Spec
from driftwalk.states import Point, Probe, State

from .calls import call
from .depth import BLOCKS
from .eager_run import watched
from .given import GivenModel
from .hooks import TensorSink
from .loaded import LoadedModel
from .points import Layout, has_modules
from .stopwatch import between, stamp, wait
from .tensors import from_numpy, to_numpy
from .torch_runtime import Inputs, TorchRuntime


class TorchEager(TorchRuntime):
    """Plain eager PyTorch: hooks on the blocks, everything else untouched."""

    def __init__(self, spec: Spec, model: object) -> None:
        if "compile" in spec.options:
            raise UsageError(
                f"{spec}: TorchEager compiles nothing. driftwalk.backend(spec, model) makes the "
                "backend that a spec names."
            )
        super().__init__(spec, model)

    @classmethod
    def around(cls, module: nn.Module, label: str = "", blocks: str | None = None) -> TorchEager:
        """A backend for a module as it is: its own dtypes, its own devices, nothing converted.

        `blocks` is the stack that a user named in the model; another implementation may lack it.
        """
        given = GivenModel(
            module, label, blocks if blocks and has_modules(module, blocks) else None
        )
        return cls(Spec("torch", str(given.device), given.mixture.dtype), given)

    def shows(self, model: LoadedModel) -> bool:
        """Whether its states are those that evidence.py would have this model run for."""
        plain = type(self) is TorchEager and not self._attn and not self._threads
        return (
            plain and self._model is model and self._device.type == "cpu" and self._look == BLOCKS
        )

    def _plain(self, module: nn.Module, inputs: Inputs) -> Any:
        return call(module, inputs)

    def _watched(self, module: nn.Module, inputs: Inputs, layout: Layout, sink: TensorSink) -> Any:
        return watched(module, layout, sink, partial(call, module, inputs))

    def layer_laps(self, probe: Probe) -> Mapping[str, float]:
        """The time from one point to the next, in a run in which nothing is copied."""
        with self.at_work(probe) as (module, inputs, layout):
            stamps: list[tuple[str, Any]] = [("", stamp(self._device))]

            def note(point: Point, _: torch.Tensor) -> None:
                stamps.append((point.name, stamp(self._device)))

            watched(module, layout, note, partial(call, module, inputs))
            wait(self._device)
        return {name: between(before, after) for (_, before), (name, after) in pairwise(stamps)}

    def replay(self, probe: Probe, given: Mapping[str, Array], sink: Sink) -> None:
        """Run each block on the *given* previous state; hand on what this model makes of it."""
        with self.at_work(probe) as (module, inputs, layout):
            walked = {point.name for stack in layout.stacks for point in stack.points}

            def exchange(point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
                sink(State(point, to_numpy(tensor)))
                array = given.get(point.name)
                if array is None:
                    return None
                # Nothing follows an output; inside a block, another implementation may go another
                # way.
                fits = array.shape == tensor.shape and not is_output(point.name)
                if point.name not in walked and not fits:
                    return None
                return _like(tensor, array)

            watched(module, layout, exchange, partial(call, module, inputs))


def _like(tensor: torch.Tensor, array: Array) -> torch.Tensor:
    """The given state in this model's dtype; a state of another shape cannot take its place."""
    if tuple(array.shape) != tuple(tensor.shape):
        raise UsageError(f"Cannot replay a state of shape {array.shape} at {tuple(tensor.shape)}.")
    return from_numpy(array, tensor.device).to(tensor.dtype)
