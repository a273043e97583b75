"""Masks that say the opposite of what they seem to: only the padding would be compared.

The model is put behind a forward of another convention, as a user's own module may have. The fault
is at real tokens and nowhere else, in the last block, after which no position looks at another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.registry import create
from driftwalk.states import Probe

from ...calls import call
from ...loaded import LoadedModel
from ...tensors import output_tensors, with_stream_output
from .lie import Absent, Case, Ground, Lie

MASK = "attention_mask"
SIZES = {"fp16": 0.1, "bf16": 0.5}
"""How much the fault changes a state, in formats in which 1 % may be noise."""


class OtherMask(nn.Module):
    """A model whose mask is written in another way, and rewritten into its own inside."""

    def __init__(self, model: nn.Module, reading: str) -> None:
        super().__init__()
        self.model = model
        self.reading = reading

    def forward(self, **inputs: torch.Tensor) -> Any:
        mask = inputs[MASK]
        own = mask == 0 if self.reading != "kept" else mask != 0
        return call(self.model, inputs | {MASK: own.to(torch.int64)})


READINGS: dict[str, Callable[[Array], Array]] = {
    "1 where padding is": lambda mask: (mask == 0).astype(np.int64),
    "added to scores": lambda mask: np.where(mask == 0, -1e4, 0.0).astype(np.float32),
    "True where padding is": lambda mask: mask == 0,
    "kept": lambda mask: mask != 0,
}


@dataclass(frozen=True, eq=False)
class OffAt:
    """A hook that changes what a block gives at some positions alone."""

    places: torch.Tensor
    factor: float

    def __call__(self, _: nn.Module, args: Any, output: Any) -> Any:
        tensor = output_tensors(output)[0]
        off = torch.where(self.places.to(tensor.device)[..., None], self.factor, 1.0)
        return with_stream_output(output, tensor * off.to(tensor.dtype))


def inverted_mask(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which a mask can be read."""
    given = ground.probe.inputs.get(MASK)
    if given is None:
        raise Absent(f"it takes no {MASK}")
    if given.ndim != 2 or (given != 0).all():
        raise Absent("nothing is padded in this probe")
    if not hasattr(ground.model.module, "config"):
        raise Absent("how it reads its mask is known of transformers models alone")
    stack = ground.anatomy.layout.stacks[0]
    path = stack.blocks[-1]
    point = stack.points[1 + stack.blocks.index(path)].name  # one block may be all layers
    size = SIZES.get(ground.dtype, 0.01)
    first = ground.seed % len(READINGS)
    readings = list(READINGS.items())
    for reading, written in readings[first:] + readings[:first]:

        def build(reading: str = reading, written: Callable[[Array], Array] = written) -> Case:
            module = OtherMask(ground.model.module, reading)
            wrong = copy.deepcopy(module)
            places = torch.from_numpy(np.ascontiguousarray(given != 0))
            wrong.model.get_submodule(path).register_forward_hook(OffAt(places, 1 + size))
            inputs = {**ground.probe.inputs, MASK: written(given)}
            probe: Probe = replace(ground.probe, inputs=inputs)
            candidate = create(ground.candidate.spec, LoadedModel(wrong, "a faulty copy"))
            model = LoadedModel(module, f"{ground.model.label} behind another mask")
            return Case(model, candidate, probe, "candidate", (point,))

        text = f"a mask {reading}; the candidate: {path} is off by {size:.0%} at real tokens"
        yield Lie("inverted_mask", text, build)
