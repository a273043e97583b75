"""A module without a config: its inputs are read off its first layer, and tried."""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from .documented import annotated
from .subject import Subject
from .wanted import Wanted

_IMAGE = {1: (64,), 2: (32, 32), 3: (8, 16, 16)}
_SEED = {1: (8,), 2: (4, 4), 3: (4, 4, 4)}
"""What a network that makes images begins with."""
_STEP = re.compile(r"^(t|time|times|timesteps?|steps?|sigma|noise_level)$")
_MASK = re.compile(r"mask|padding")


def first_guess(subject: Subject) -> dict[str, Wanted]:
    """One guess for every input that forward needs; empty where no layer says anything."""
    names = subject.required or list(subject.parameters)[:1]
    layer = next((m for m in subject.module.modules() if _weighs(m)), None)
    first = None if layer is None else _of_layer(subject, layer)
    if first is None or not names:
        return {}
    wanted: dict[str, Wanted] = {}
    for name in names:
        wanted[name] = _of_name(subject, name, first)
    head, *_ = wanted
    wanted[head] = Wanted(wanted[head].kind, wanted[head].shape, wanted[head].high, main=True)
    return wanted


def _weighs(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(False))


def _of_name(subject: Subject, name: str, first: Wanted) -> Wanted:
    """An input by what names usually mean; else like the first one, until a try says more."""
    if _STEP.match(name):
        return Wanted("ids", (subject.batch,), 10)
    if _MASK.search(name):
        return Wanted("ones", first.shape[:2])
    if name == "edge_index":
        return Wanted("ids", (2, 4 * subject.length), subject.length)
    if re.search(r"Long|Int", annotated(subject, name)) and first.kind != "ids":
        return Wanted("ids", (subject.batch, subject.length), 2)
    return first


def _of_layer(subject: Subject, layer: nn.Module) -> Wanted | None:
    batch, length = subject.batch, subject.length
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return Wanted("ids", (batch, length), layer.num_embeddings)
    if isinstance(layer, nn.Linear):
        return Wanted("normal", (batch, length, layer.in_features))
    if isinstance(layer, nn.LayerNorm):
        return Wanted("normal", (batch, length, int(layer.normalized_shape[-1])))
    if isinstance(layer, nn.RNNBase):
        rows = (batch, length) if layer.batch_first else (length, batch)
        return Wanted("normal", (*rows, layer.input_size))
    if isinstance(layer, nn.RNNCellBase):
        return Wanted("normal", (batch, layer.input_size))
    if isinstance(layer, nn.MultiheadAttention):
        rows = (batch, length) if layer.batch_first else (length, batch)
        return Wanted("normal", (*rows, layer.embed_dim))
    if isinstance(layer, _ConvNd):
        sides = _SEED if isinstance(layer, _ConvTransposeNd) else _IMAGE
        shape = (batch, layer.in_channels, *sides[len(layer.kernel_size)])
        return Wanted("normal", shape)
    if isinstance(layer, nn.GroupNorm):
        return Wanted("normal", (batch, layer.num_channels, 16, 16))
    if isinstance(layer, _NormBase):
        sides_of_norm = {"1d": (length,), "2d": (16, 16), "3d": (4, 8, 8)}
        ends = next((s for n, s in sides_of_norm.items() if type(layer).__name__.endswith(n)), ())
        return Wanted("normal", (batch, layer.num_features, *ends))
    # A parameter of the module's own, a positional table say: its last axis is a width.
    own = next(layer.parameters(False))
    return Wanted("normal", (batch, length, own.shape[-1])) if own.ndim else None
