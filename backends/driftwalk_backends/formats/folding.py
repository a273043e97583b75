"""Batch normalisation folded into the layer before it, as quantisers do it before they round.

    w' = w g / sqrt(v + e)        b' = (b - m) g / sqrt(v + e) + h

m and v are the running mean and variance, g and h what is learned, e the epsilon.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

_Before = nn.Linear | _ConvNd


def folded(module: nn.Module) -> nn.Module | None:
    """A copy whose layers have their normalisation in them; None where none is behind a layer.

    A normalisation belongs to the layer that is declared before it and has as many channels. That
    this is the order in which they run is not known: it is for looking numbers up, not to be run.
    """
    if not any(_pairs(module)):
        return None
    made = copy.deepcopy(module).eval()
    for layer, norm in _pairs(made):
        _fold(layer, norm)
    return made


def _pairs(module: nn.Module) -> Iterator[tuple[_Before, _BatchNorm]]:
    layer: _Before | None = None
    for part in module.modules():
        if isinstance(part, nn.Linear | _ConvNd):
            layer = part
        elif isinstance(part, _BatchNorm) and layer is not None:
            if part.running_mean is not None and _channels(layer) == part.num_features:
                yield layer, part
            layer = None


def _channels(layer: _Before) -> int:
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def _fold(layer: _Before, norm: _BatchNorm) -> None:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    gain, shift = norm.weight, norm.bias
    if not norm.affine:
        gain, shift = nn.Parameter(torch.ones_like(mean)), nn.Parameter(torch.zeros_like(mean))
    statistics = mean, variance, norm.eps, gain, shift
    if isinstance(layer, nn.Linear):
        layer.weight, layer.bias = fuse_linear_bn_weights(layer.weight, layer.bias, *statistics)
    else:
        turned = isinstance(layer, _ConvTransposeNd)
        layer.weight, layer.bias = fuse_conv_bn_weights(
            layer.weight, layer.bias, *statistics, transpose=turned
        )
