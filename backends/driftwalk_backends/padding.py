"""Which positions of a probe are padding: as transformers says, or as the model itself shows.

In a transformers model, 0 in an attention mask is padding. A mask of any other module may be the
other way round, may be added to scores, or may be no attention mask at all. There, positions are
padding if they do what padding does: other inputs at these positions change nothing elsewhere, and
with the mask turned round at these positions something elsewhere does change. Where that holds for
neither side of a mask, or for both, every position is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array
from driftwalk.errors import ModelError, ProbeError
from driftwalk.states import Point, Probe

from .calls import call, explaining, inputs_for, quietly
from .eager_run import watched
from .layout import Layout
from .loaded import LoadedModel
from .model_outputs import named_outputs

States = dict[str, Array]


def with_padding(model: LoadedModel, probe: Probe) -> Probe:
    """The probe, knowing which of its positions are padding in this model."""
    if of_transformers(model.module):
        _check_rows(probe)
        return probe if probe.kept is None else replace(probe, kept=None, remarks=())
    kept: dict[str, Array] = {}
    remarks: list[str] = []
    for name in filter(_is_mask, probe.inputs):
        sides = _sides(probe, name)
        if not sides:
            continue
        shown = [kept_if for side in sides if (kept_if := _shown(model, probe, name, side))]
        if len(shown) != 1:
            remarks.append(
                f"Which positions {name} marks as padding does not show in what the model does "
                "with them, so all positions were compared."
            )
            continue
        for point, keep in shown[0].items():
            kept[point] = kept[point] & keep if point in kept else keep
    return replace(probe, kept=kept, remarks=tuple(remarks))


def of_transformers(module: nn.Module) -> bool:
    """Whether a model is one of transformers, or of a class made from one."""
    return any(kind.__module__.partition(".")[0] == "transformers" for kind in type(module).mro())


def _is_mask(name: str) -> bool:
    return "mask" in name or "pad" in name


def _check_rows(probe: Probe) -> None:
    for name, array in probe.inputs.items():
        rows = np.atleast_2d(array)
        if name.endswith("attention_mask") and not rows.reshape(len(rows), -1).any(1).all():
            raise ProbeError(
                f"Probe input {name!r} has a row that is all zero: "
                "every position is padding there, and nothing could be compared."
            )


def _content(probe: Probe, mask: str, shape: tuple[int, ...]) -> list[str]:
    """The inputs that say something at each position: `src` for `src_key_padding_mask`, or all."""
    content = [
        name
        for name, array in probe.inputs.items()
        if array.shape[:2] == shape and not _is_mask(name) and "position" not in name
    ]
    related = [name for name in content if name.partition("_")[0] == mask.partition("_")[0]]
    return related or content


def _sides(probe: Probe, name: str) -> list[Array]:
    """The positions that a mask sets, and those that it does not: either may be the padding.

    Of a mask with a row for each position, those that are alike in all rows.
    """
    mask = probe.inputs[name]
    if mask.ndim < 2:
        return []
    for batch in {a.shape[0] for n, a in probe.inputs.items() if a.ndim > 1 and not _is_mask(n)}:
        shape = (batch, mask.shape[-1])
        if mask.shape[0] not in (1, batch) or not _content(probe, name, shape):
            continue
        on = (mask != 0).reshape(mask.shape[0], -1, mask.shape[-1])
        both = (np.broadcast_to(side.all(1), shape) for side in (on, ~on))
        return [side for side in both if side.any() and not side.all(1).any()]
    return []


def _shown(model: LoadedModel, probe: Probe, name: str, side: Array) -> dict[str, Array]:
    """What to keep by point, if these positions are seen to be padding; else nothing."""
    inputs, scribbled = probe.inputs, dict(probe.inputs)
    for other in _content(probe, name, side.shape):
        array = inputs[other]
        place = side.reshape(*side.shape, *[1] * (array.ndim - 2))
        scribbled[other] = np.where(place, _otherwise(array), array).astype(array.dtype)
    turned = {**inputs, name: _turned(inputs[name], side)}
    try:
        plain = _states(model, probe)
        scribble = _states(model, replace(probe, inputs=scribbled))
        unmasked = _states(model, replace(probe, inputs=turned))
    except ModelError:
        return {}  # it cannot be run in other ways than as it was given
    outside = [_elsewhere(plain[p], scribble.get(p), side) for p in plain]
    if any(outside) or not any(_elsewhere(plain[p], unmasked.get(p), side) for p in plain):
        return {}
    moved = [p for p in plain if not np.array_equal(plain[p], scribble[p], equal_nan=True)]
    whole = [p for p in plain if plain[p].ndim > 2 and plain[p].shape[:2] == side.shape]
    return dict.fromkeys([""] if set(whole) <= set(moved) else moved, ~side)


def _turned(mask: Array, side: Array) -> Array:
    """The mask with the opposite of what it has at these positions."""
    rows = side if mask.shape[0] == side.shape[0] else side.all(0, keepdims=True)
    columns = rows.reshape(rows.shape[0], *[1] * (mask.ndim - 2), rows.shape[1])
    place = np.broadcast_to(columns, mask.shape)
    opposite = mask[(mask != 0) != (mask[place].flat[0] != 0)]
    return np.where(place, opposite.flat[0], mask).astype(mask.dtype) if opposite.size else mask


def _otherwise(array: Array) -> Array:
    """Another value at every place, of which the model is known to take each."""
    if array.dtype.kind == "b":
        return ~array
    if array.dtype.kind not in "iu":
        return 0.5 - 1.7 * array.astype(np.float64)
    values, index = np.unique(array, return_inverse=True)
    if len(values) == 1:
        return np.where(array > 0, array - 1, array + 1)
    return np.roll(values, 1)[index].reshape(array.shape)


def _elsewhere(a: Array, b: Array | None, side: Array) -> bool:
    """Whether two states differ outside these positions."""
    if b is None or a.shape != b.shape:
        return True
    if a.ndim > 1 and a.shape[:2] == side.shape:  # of two axes: one number for each token
        a, b = a[~side], b[~side]
    return not np.array_equal(a, b, equal_nan=True)


def _states(model: LoadedModel, probe: Probe) -> States:
    """Every state and every output, of the model as it is."""
    module = model.module
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    states: States = {}

    def keep(point: Point, tensor: torch.Tensor) -> None:
        states[point.name] = tensor.detach().cpu().double().numpy()

    with quietly(module), explaining(model.label, "a look at its masks"):
        inputs = inputs_for(module, probe, device)

        def run(**extra: Any) -> Any:
            return call(module, inputs, **extra)

        try:
            layout = model.layout(module, inputs, run)
        except ModelError:
            layout = Layout(())  # whoever walks it will say so
        output = watched(module, layout, keep, run)
    for name, tensor in named_outputs(output).items():
        keep(Point(f"{name} "), tensor)  # beside the points, whatever they are called
    return states
