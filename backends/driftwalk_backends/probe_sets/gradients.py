"""Inputs that drive a module farther, by the gradient of the largest number that the module gives.

Float inputs are moved by the sign of it. For ids it is taken by what the table of embeddings gives,
and a token becomes the one whose row lies farthest along it. All of it in the model as it is on the
CPU: a direction needs no more digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.states import Probe

from ..calls import call_as_it_is, quietly
from ..default_probe.subject import input_table
from ..loaded import LoadedModel
from ..randomness import begin_alike
from ..tensors import tensors_in, to_numpy

STEPS = 4
"""Steps of one climb; each is one run forward and one back."""
LENGTHS, SHARES = (0.5, 1.0, 2.0), (0.25, 0.5, 1.0)
"""Other forms of a climb: how far along its way, and what share of the values goes it."""
MOST_PLACES, BEST, ONE_IN = 64, 64, 16
"""Places of tokens that are looked at, and ids to choose from for each: no more than one of 16."""
COUNTS = (1, 2, 4)
"""Tokens of a row that are exchanged."""
IDS, MASK = "input_ids", "attention_mask"


def climbed(
    model: LoadedModel,
    probe: Probe,
    path: str,
    share: float,
    bounds: Mapping[str, float],
    wanted: int,
    rng: np.random.Generator,
) -> list[dict[str, Array]]:
    """The probe's inputs after some steps uphill, each as large as a `share` of the bounds.

    Then others on the way there, or beyond it. No value is beyond its bound. Empty where there is
    no gradient to go by.
    """
    module = model.on_host()
    part = dict(module.named_modules()).get(path)
    floats = [name for name, bound in bounds.items() if name in probe.inputs and bound > 0]
    if part is None or not floats:
        return []
    inputs: dict[str, Any] = {}
    with suppress(Exception), quietly(module):  # whatever a model raises that has no gradients
        inputs = model.inputs(module, probe, "cpu")
        for _ in range(STEPS):
            for name, slope in _slopes(module, part, inputs, floats).items():
                step = slope.sign() * (share * bounds[name])
                inputs[name] = (inputs[name] + step).clamp(-bounds[name], bounds[name])
    made = {n: to_numpy(inputs[n]).astype(probe.inputs[n].dtype) for n in floats if n in inputs}
    if all((made[name] == probe.inputs[name]).all() for name in made):
        return []
    others = (_on_the_way(probe, made, bounds, rng) for _ in range(wanted - 1))
    return [{**probe.inputs, **one} for one in (made, *others)]


def _on_the_way(
    probe: Probe, made: Mapping[str, Array], bounds: Mapping[str, float], rng: np.random.Generator
) -> dict[str, Array]:
    length, share = float(rng.choice(LENGTHS)), float(rng.choice(SHARES))
    found = {}
    for name, array in made.items():
        start, bound = probe.inputs[name], bounds[name]
        way = (array - start) * length * (rng.random(array.shape) < share)
        found[name] = np.clip(start + way, -bound, bound).astype(array.dtype)
    return found


def reworded(
    model: LoadedModel, probe: Probe, path: str, wanted: int, rng: np.random.Generator
) -> list[dict[str, Array]]:
    """The probe's inputs with some ids exchanged, in so many ways, after some steps uphill.

    Each step makes so many by one gradient, and goes on from those that drive the module farthest,
    row by row; the last one's are not run here. Empty where there is no gradient to go by.
    """
    module = model.on_host()
    part, table = dict(module.named_modules()).get(path), input_table(module)
    ids = probe.inputs.get(IDS)
    if part is None or not isinstance(table, nn.Embedding) or ids is None or ids.ndim != 2:
        return []
    made: list[dict[str, Array]] = []
    with suppress(Exception), quietly(module):  # whatever a model raises that has no gradients
        inputs = model.inputs(module, probe, "cpu")
        keep = inputs.get(MASK)
        keep = keep if keep is not None and keep.shape == ids.shape else None
        calls = _calls(module, part, inputs)
        for step in range(STEPS):
            now = torch.tensor(ids).to(inputs[IDS])
            slope, rows = _table_slope(module, part, table, {**inputs, IDS: now})
            places, better = _better(slope, rows, table.weight, keep)
            others = [_exchanged(ids, places, better, rng) for _ in range(wanted)]
            made = [{**probe.inputs, IDS: one} for one in (ids, *others) if len(places)]
            if step < STEPS - 1 and made:
                ids = _farthest_rows(module, part, inputs, np.stack([ids, *others]), calls)
    return made[-wanted:]


def _farthest_rows(
    module: nn.Module, part: nn.Module, inputs: Mapping[str, Any], forms: Array, calls: int
) -> Array:
    """Of several forms of some ids, each row as the form has it that drives a module farthest."""
    count, rows, length = forms.shape
    batch = {n: t.repeat(count, *[1] * (t.ndim - 1)) for n, t in inputs.items()}
    batch[IDS] = torch.tensor(forms.reshape(-1, length)).to(inputs[IDS])
    most = torch.zeros(count, rows)
    with torch.no_grad():
        for one in _given(module, part, batch, calls):
            most += _rows_most(one, batch.get(MASK)).reshape(count, rows, -1).amax(2)
    return np.asarray(forms[to_numpy(most.argmax(0)), np.arange(rows)])


def _calls(module: nn.Module, part: nn.Module, inputs: Mapping[str, Any]) -> int:
    """How often a run calls a module."""
    calls: list[None] = []
    handle = part.register_forward_hook(lambda *_: calls.append(None))
    try:
        with torch.no_grad():
            call_as_it_is(module, inputs)
    finally:
        handle.remove()
    return len(calls)


def _table_slope(
    module: nn.Module, part: nn.Module, table: nn.Embedding, inputs: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """How what a module gives at most changes with each token's row, and the rows."""
    rows: list[torch.Tensor] = []

    def cut(_: nn.Module, __: Any, out: torch.Tensor) -> torch.Tensor:
        rows.append(out.detach().requires_grad_())
        return rows[-1]

    handle = table.register_forward_hook(cut)
    try:
        with torch.enable_grad():
            most = _most(module, part, inputs)
            (slope,) = torch.autograd.grad(most, rows[:1])
    finally:
        handle.remove()
    return slope, rows[0].detach()


def _better(
    slope: torch.Tensor, rows: torch.Tensor, table: torch.Tensor, keep: torch.Tensor | None
) -> tuple[Array, Array]:
    """The places of tokens that matter most, and for each the ids that promise most."""
    size = slope.norm(dim=-1)
    size = size if keep is None else size * (keep != 0)
    places = size.flatten().topk(min(MOST_PLACES, int((size > 0).sum()))).indices
    along = slope.flatten(0, 1)[places]
    gains = along @ table.detach().T - (along * rows.flatten(0, 1)[places]).sum(1, keepdim=True)
    best = gains.topk(min(BEST, -(-gains.shape[1] // ONE_IN)), dim=1).indices
    return to_numpy(places), to_numpy(best)


def _exchanged(ids: Array, places: Array, better: Array, rng: np.random.Generator) -> Array:
    """The ids with some of those exchanged that matter most, each by one that promises more."""
    count = int(rng.choice(COUNTS)) * len(ids)
    made = ids.copy().reshape(-1)
    for number in rng.permutation(len(places))[:count]:
        # Of the best ids those in front are taken more often.
        at = int(better.shape[1] * rng.random() ** 2)
        made[places[number]] = better[number, at]
    return made.reshape(ids.shape)


def _slopes(
    module: nn.Module, part: nn.Module, inputs: Mapping[str, Any], floats: list[str]
) -> dict[str, torch.Tensor]:
    """How what a module gives at most changes with each float input."""
    with torch.enable_grad():
        leaves = {n: inputs[n].detach().clone().requires_grad_() for n in floats}
        given = {**inputs, **{n: leaf.clone() for n, leaf in leaves.items()}}
        most = _most(module, part, given)
        found = torch.autograd.grad(most, list(leaves.values()), allow_unused=True)
    return {n: slope for n, slope in zip(leaves, found, strict=True) if slope is not None}


def _most(module: nn.Module, part: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The largest number that a module gives in each row, the rows added up."""
    given = [one for one in _given(module, part, inputs) if one.requires_grad]
    return torch.stack([_rows_most(one, inputs.get(MASK)).sum() for one in given]).sum()


class _Enough(Exception):  # noqa: N818 - a way out, not a failure
    pass


def _given(
    module: nn.Module, part: nn.Module, inputs: Mapping[str, Any], calls: int = 0
) -> list[torch.Tensor]:
    """The float tensors that a module gives; after so many calls of it, if any, nothing is run."""
    given: list[torch.Tensor] = []
    seen = 0

    def note(_: nn.Module, __: Any, out: Any) -> None:
        nonlocal seen
        seen += 1
        given.extend(t for _, t in tensors_in(out) if t.is_floating_point())
        if seen == calls:
            raise _Enough

    handle = part.register_forward_hook(note)
    try:
        begin_alike()
        with suppress(_Enough):
            call_as_it_is(module, inputs)
    finally:
        handle.remove()
    return given


def _rows_most(given: torch.Tensor, mask: Any) -> torch.Tensor:
    """The largest number of each row, padding left out."""
    size = given.abs().reshape(len(given), -1)
    if isinstance(mask, torch.Tensor) and mask.ndim == 2 and given.shape[:2] == mask.shape:
        size = given.abs().flatten(2).amax(2) * (mask != 0)
    return size.amax(1)
