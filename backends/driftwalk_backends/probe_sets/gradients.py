"""Inputs that drive a module farther: float inputs moved by the sign of a gradient.

What a module gives at most is differentiated by pixels, sound or embeddings, in the model as it is
on the CPU; the direction of a step needs no more digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.states import Probe

from ..calls import call_as_it_is, quietly
from ..loaded import LoadedModel
from ..randomness import begin_alike
from ..tensors import tensors_in, to_numpy

STEPS = 4
"""Steps of one climb; each is one run forward and one back."""


def climbed(
    model: LoadedModel, probe: Probe, path: str, share: float, bounds: Mapping[str, float]
) -> dict[str, Array]:
    """The probe's inputs after some steps uphill, each as large as a `share` of the bounds.

    No value is beyond its bound. Empty where there is no gradient to go by.
    """
    module = model.on_host()
    part = dict(module.named_modules()).get(path)
    floats = [name for name, bound in bounds.items() if name in probe.inputs and bound > 0]
    if part is None or not floats:
        return {}
    inputs: dict[str, Any] = {}
    with suppress(Exception), quietly(module):  # whatever a model raises that has no gradients
        inputs = model.inputs(module, probe, "cpu")
        for _ in range(STEPS):
            for name, slope in _slopes(module, part, inputs, floats).items():
                step = slope.sign() * (share * bounds[name])
                inputs[name] = (inputs[name] + step).clamp(-bounds[name], bounds[name])
    made = {n: to_numpy(inputs[n]).astype(probe.inputs[n].dtype) for n in floats if n in inputs}
    if all((made[name] == probe.inputs[name]).all() for name in made):
        return {}
    return {**probe.inputs, **made}


def _slopes(
    module: nn.Module, part: nn.Module, inputs: Mapping[str, Any], floats: list[str]
) -> dict[str, torch.Tensor]:
    """How what a module gives at most changes with each float input; the rows one by one."""
    given: list[torch.Tensor] = []

    def note(_: nn.Module, __: Any, out: Any) -> None:
        given.extend(t for _, t in tensors_in(out) if t.is_floating_point() and t.requires_grad)

    handle = part.register_forward_hook(note)
    try:
        with torch.enable_grad():
            leaves = {n: inputs[n].detach().clone().requires_grad_() for n in floats}
            begin_alike()
            call_as_it_is(module, {**inputs, **{n: leaf.clone() for n, leaf in leaves.items()}})
            most = sum(one.abs().reshape(len(one), -1).amax(1).sum() for one in given)
            found = torch.autograd.grad(most, list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    finally:
        handle.remove()
    return {n: slope for n, slope in zip(leaves, found, strict=True) if slope is not None}
