"""The layer that refused a tensor, and what it takes instead."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from .failures import Failure, Frame
from .wanted import Wanted

_ROOM = {1: (64,), 2: (32, 32), 3: (8, 16, 16)}
"""Sizes of what a convolution slides over, where nothing else says them."""


def mended_by_layer(failure: Failure, wanted: Mapping[str, Wanted]) -> dict[str, Wanted] | None:
    """The inputs with what the innermost plain layer of torch takes; None where none refused."""
    for frame in failure.frames:
        layer = frame.module
        if layer is None or not isinstance(layer, _KINDS):
            continue
        tensor = _argument(frame)
        name = None if tensor is None else _whose(tensor, failure.tensors)
        if tensor is None or name is None or name not in wanted:
            return _mended_image(layer, tensor, wanted) or _mended_wave(layer, tensor, wanted)
        better = _better(layer, tensor, failure.tensors[name], wanted[name])
        return None if better is None else {**wanted, name: better}
    return None


def _mended_image(
    layer: nn.Module, tensor: torch.Tensor | None, wanted: Mapping[str, Wanted]
) -> dict[str, Wanted] | None:
    """The only image with other sides, for a layer that takes all of what became of it."""
    images = [name for name, one in wanted.items() if len(one.shape) in (4, 5)]
    if not isinstance(layer, nn.Linear) or tensor is None or tensor.ndim != 2 or len(images) != 1:
        return None
    image = wanted[images[0]]
    scale = (layer.in_features / max(1, tensor.shape[-1])) ** (1 / (len(image.shape) - 2))
    sides = [max(1, round(side * scale)) for side in image.shape[2:]]
    return {**wanted, images[0]: image.resized((*image.shape[:2], *sides))}


def _mended_wave(
    layer: nn.Module, tensor: torch.Tensor | None, wanted: Mapping[str, Wanted]
) -> dict[str, Wanted] | None:
    """The only wave with an axis for its channels, for a convolution that took rows for them."""
    waves = [name for name, one in wanted.items() if one.kind == "normal" and len(one.shape) == 2]
    if not isinstance(layer, nn.Conv1d) or tensor is None or tensor.ndim != 2 or len(waves) != 1:
        return None
    rows, samples = wanted[waves[0]].shape
    return {**wanted, waves[0]: wanted[waves[0]].resized((rows, layer.in_channels, samples))}


_KINDS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.RNNBase, _ConvNd, _NormBase)


def _argument(frame: Frame) -> torch.Tensor | None:
    """What a layer was called with."""
    named = [frame.names.get(name) for name in ("input", "x", "hidden_states")]
    others = (v for n, v in frame.names.items() if n not in ("weight", "bias"))
    return next((v for v in (*named, *others) if isinstance(v, torch.Tensor)), None)


def _whose(tensor: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The input that a tensor is, or is a view of; else the only one of its size."""
    for name, given in tensors.items():
        if given.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
            return name
    alike = [n for n, given in tensors.items() if given.numel() == tensor.numel()]
    return alike[0] if len(alike) == 1 else None


def _better(
    layer: nn.Module, tensor: torch.Tensor, given: torch.Tensor, wanted: Wanted
) -> Wanted | None:
    if isinstance(layer, nn.Embedding):
        if wanted.kind == "ids":
            return replace(wanted, high=min(wanted.high, layer.num_embeddings))
        shape = wanted.shape[:-1] if len(wanted.shape) > 2 else wanted.shape
        return replace(wanted, kind="ids", high=layer.num_embeddings, shape=shape)
    if not tensor.is_floating_point():
        return _of_floats(layer, wanted)
    if isinstance(layer, _ConvNd):
        return _for_convolution(layer, tensor, given, wanted)
    if isinstance(layer, nn.LayerNorm):
        return _with_axis(wanted, tensor, given, -1, int(layer.normalized_shape[-1]))
    if isinstance(layer, nn.Linear) and _takes_patches(layer, given):
        return wanted.resized((given.shape[0], 4, layer.in_features))
    if isinstance(layer, nn.Linear):
        return _with_axis(wanted, tensor, given, -1, layer.in_features)
    if isinstance(layer, nn.RNNBase):
        return _with_axis(wanted, tensor, given, -1, layer.input_size)
    channels = layer.num_channels if isinstance(layer, nn.GroupNorm) else layer.num_features
    return _with_axis(wanted, tensor, given, 1, int(channels))  # type: ignore[arg-type]


def _of_floats(layer: nn.Module, wanted: Wanted) -> Wanted:
    """Floats for a layer that was given ids: a row of features in the place of each."""
    sizes = (getattr(layer, name, None) for name in ("in_features", "input_size"))
    width = next((size for size in sizes if isinstance(size, int)), None)
    shape = wanted.shape if width is None else (*wanted.shape, width)
    return replace(wanted, kind="normal", shape=shape)


def _takes_patches(layer: nn.Linear, given: torch.Tensor) -> bool:
    """Whether a layer reads whole patches of what was given as images."""
    if given.ndim != 4 or layer.in_features % given.shape[1]:
        return False
    side = math.isqrt(layer.in_features // given.shape[1])
    return side > 1 and side * side * given.shape[1] == layer.in_features


def _for_convolution(
    layer: _ConvNd, tensor: torch.Tensor, given: torch.Tensor, wanted: Wanted
) -> Wanted | None:
    dims = len(layer.kernel_size) + 2
    shape = tuple(given.shape)
    if tensor.ndim == dims:
        return _with_axis(wanted, tensor, given, 1, layer.in_channels)
    if tensor.ndim == dims + 1 and given.ndim == dims:  # the model has put in an axis of its own
        return wanted.resized((shape[0], *shape[2:]))
    if tensor.ndim != given.ndim:
        return None
    if tensor.ndim == 2 and shape[-1] == layer.in_channels * math.prod(layer.kernel_size):
        return wanted.resized((*shape[:-1], layer.in_channels, *layer.kernel_size))
    if tensor.ndim == dims - 1 and dims == 5:
        return wanted.resized((shape[0], layer.in_channels, 2 * layer.kernel_size[0], *shape[-2:]))
    if tensor.ndim == dims - 1 and layer.in_channels == 3:  # an image, and no frames of audio
        return wanted.resized((shape[0], 3, 64, 64))
    if tensor.ndim == dims - 1:
        return wanted.resized((shape[0], layer.in_channels, *shape[1:]))
    if tensor.ndim == dims + 1:
        return wanted.resized((shape[0], *shape[2:]))
    return wanted.resized((shape[0], layer.in_channels, *_ROOM[dims - 2]))


def _with_axis(
    wanted: Wanted, tensor: torch.Tensor, given: torch.Tensor, axis: int, size: int
) -> Wanted | None:
    """The input with another size along what the layer sees as this axis."""
    if tensor.ndim == 0 or axis >= tensor.ndim:
        return None
    seen = tensor.shape[axis]
    if seen == size:
        return None
    own = _same_axis(tensor, given, axis)
    if own is not None and own < len(wanted.shape):
        shape = list(wanted.shape)
        shape[own] = size + given.shape[own] - seen  # some of it may have been cut off
        return wanted.resized(tuple(shape))
    if tensor.ndim == given.ndim + 1 or given.ndim == 2:
        # A feature for each position is missing: [rows, positions] became [rows, positions, width].
        return wanted.resized((*wanted.shape[: tensor.ndim - 1], size))
    return None


def _same_axis(tensor: torch.Tensor, given: torch.Tensor, axis: int) -> int | None:
    """The axis of the input that is this axis of a view of it."""
    size, stride = tensor.shape[axis], tensor.stride(axis)
    axes = range(given.ndim)
    alike = [own for own in axes if given.shape[own] == size]
    same = [own for own in alike if given.stride(own) == stride]
    view = tensor.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    cut = [
        own for own in axes if view and given.stride(own) == stride and tensor.ndim == given.ndim
    ]
    return next((axes[-1] for axes in (same, alike, cut) if axes), None)
