"""The model that a quantised artefact declares: the given one, its weights as they are stored."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import nn

from driftwalk.formats import Declared, Misstored, StoredAs

from ..loaded import LoadedModel
from .in_libraries import UnknownFormatError
from .in_torch import stored_in
from .placing import Unplaced, placed
from .rescaled import Rescaled, rescaled
from .rounded import Honest, RoundedWeight


def declared_by(module: nn.Module, model: LoadedModel) -> LoadedModel | None:
    """What a quantised module should compute, given the model; None where that cannot be told."""
    try:
        weights = stored_in(module)
    except UnknownFormatError:
        return None
    made = declared_model(model, weights, rescaled(model, module, weights))
    if made is not None and made.declared is not None:
        wrong = {**made.declared.wrong, **_undeclared(module)}
        made.declared = replace(made.declared, wrong=wrong)
    return made


def _undeclared(module: nn.Module) -> dict[str, Misstored]:
    """Modules marked as they were read: in float where a folder says packed, or read by another
    step than rounded by (folders/undeclared.py, programs/stored.py)."""
    parts = ((path, getattr(part, "undeclared", None)) for path, part in module.named_modules())
    return {path: wrong for path, wrong in parts if isinstance(wrong, Misstored)}


def declared_of(
    model: LoadedModel, found: Sequence[Unplaced], partly: bool = False
) -> LoadedModel | None:
    """The same for weights whose modules are not named; None where one is not the model's.

    `partly`: such ones are left out.
    """
    weights = placed(model.at("fp32", "cpu"), found, partly)
    return None if weights is None else declared_model(model, weights)


def declared_model(
    model: LoadedModel, weights: Sequence[RoundedWeight], scaled: Rescaled | None = None
) -> LoadedModel | None:
    """The model with weights as they are stored; None where it has no such weights.

    `scaled`: what the model's own tensors became before they were rounded.
    A stored weight that is no rounding of the model's is not taken over: the model's is rounded
    again, and what is wrong is told.
    """
    module = copy.deepcopy(model.at("fp32", "cpu")).eval()
    parts = dict(module.named_modules())
    wrong: dict[str, Misstored] = {}
    own_way = []
    for one in weights:
        part = parts.get(one.path)
        weight = getattr(part, "weight", None)
        if part is None or not isinstance(weight, nn.Parameter):
            return None
        if tuple(weight.shape) != one.numbers.shape:
            return None
        found = _found(one, weight, scaled)
        if not found.is_right:
            wrong[one.path] = Misstored(found.sentence(one.path), found.beyond)
        if found.own_way:
            own_way.append(one.path)
        put = torch.from_numpy(found.values).to(weight.dtype)
        part.weight = nn.Parameter(put, requires_grad=False)
        if scaled is not None and one.path in scaled.weights:
            part.scaled_weight = torch.from_numpy(scaled.weights[one.path])
        if one.inputs is not None:
            part.register_forward_pre_hook(one.inputs)
    if not weights:
        return None
    with torch.no_grad():
        for name, vector in (scaled.vectors if scaled is not None else {}).items():
            module.get_parameter(name).copy_(vector)
    half_way = any(one.inputs is not None and one.inputs.half_way for one in weights)
    declared = Declared(
        stored=tuple(_kinds(weights)),
        tips=any(one.inputs is not None for one in weights),
        many_tip=half_way,
        half_way=half_way,
        wrong=wrong,
        own_way=tuple(own_way),
        in_float=_in_float(parts, {one.path for one in weights}),
        saved={one.path: 4 * one.numbers.size - one.bytes for one in weights},
        sources={one.path: one.source for one in weights if one.source},
    )
    label = f"{model.label}, quantised"
    return LoadedModel(module, label, blocks=model.blocks, declared=declared)


def _found(one: RoundedWeight, weight: nn.Parameter, scaled: Rescaled | None) -> Honest:
    if scaled is None or one.path not in scaled.weights:
        return one.honest(weight.detach().numpy())
    slack = one.slack + scaled.slack[one.path]
    return replace(one, slack=slack).honest(scaled.weights[one.path])


def _in_float(parts: dict[str, nn.Module], rounded: set[str]) -> tuple[str, ...]:
    """Modules whose matrix is not rounded; tables only where others are."""
    tables = any(isinstance(parts[path], nn.Embedding) for path in rounded)
    return tuple(
        path
        for path, part in parts.items()
        if path not in rounded
        and isinstance(weight := getattr(part, "weight", None), nn.Parameter)
        and weight.ndim >= 2
        and (tables or not isinstance(part, nn.Embedding))
    )


def _kinds(weights: Iterable[RoundedWeight]) -> Iterable[StoredAs]:
    """Weights that are stored alike, together."""
    groups: dict[tuple[str, str, str], list[RoundedWeight]] = {}
    for one in weights:
        inputs = "" if one.inputs is None else str(one.inputs)
        groups.setdefault((one.grid.name, _block(one), inputs), []).append(one)
    for (kind, block, inputs), alike in groups.items():
        yield StoredAs(
            kind=kind,
            block=block,
            inputs=inputs,
            weights=len(alike),
            elements=sum(one.numbers.size for one in alike),
            bytes=sum(one.bytes for one in alike),
        )


def _block(one: RoundedWeight) -> str:
    """What shares a step, in words."""
    if one.blocks == 1:
        return "the whole matrix"
    row, *rest = one.block
    if row == 1 and tuple(rest) == one.numbers.shape[1:]:
        return "a row"
    if row == 1 and one.numbers.ndim == 2:
        return f"{rest[0]} numbers of a row"
    return " x ".join(map(str, one.block))
