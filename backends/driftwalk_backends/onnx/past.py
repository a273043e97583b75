"""What is kept from one decoding step to the next, as inputs and outputs of a graph.

A graph takes `past_key_values.3.key` and gives `present.3.key`, as optimum's do; what a decoder
keeps of its encoder is `past_key_values.3.encoder.key`. States of a fixed size are `conv` and
`recurrent`. The graphs of `transformers.exporters` call the same `past_key_values.layers.3.keys`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from driftwalk.errors import BackendError

from ..cache_points import KEPT

_NAMED = re.compile(
    r"(?:(?:input|output)\.)?(?:past|present)[a-z_]*\.(?:layers\.)?(\d{1,6})\."
    r"(?:(decoder|encoder|self|cross)\.)?"
    r"(key|value|conv|recurrent)s?(?:\.(\d{1,6}))?"
)
FIXED = ("conv", "recurrent")
"""Kinds of what is kept that are of one size, however many tokens there were."""


@dataclass(frozen=True, order=True)
class Kept:
    """One tensor that a layer keeps: which layer's, what it is, the how manieth of its kind."""

    layer: int
    kind: str
    number: int = 0
    cross: bool = False
    """Of an encoder: the same in all steps."""

    @property
    def _name(self) -> str:
        which = f"encoder.{self.kind}" if self.cross else self.kind
        return f"{self.layer}.{which}" + (f".{self.number}" if self.number else "")

    @property
    def past(self) -> str:
        return f"past_key_values.{self._name}"

    @property
    def present(self) -> str:
        return f"present.{self._name}"


def kept_as(name: str) -> Kept | None:
    """What an input or output of a graph keeps, by its name; None for all others."""
    found = _NAMED.fullmatch(name)
    if found is None:
        return None
    layer, half, kind, number = found.groups()
    return Kept(int(layer), kind, int(number or 0), half in ("encoder", "cross"))


def kept_among(names: Iterable[str]) -> dict[Kept, str]:
    """What some inputs, or some outputs, of a graph keep."""
    return {kept: name for name in names if (kept := kept_as(name)) is not None}


def tensors_of(cache: Any) -> dict[Kept, torch.Tensor]:
    """All that a cache of transformers keeps; nothing of a kind of cache that has no layers."""
    return dict(_tensors(cache))


def _tensors(cache: Any) -> Iterator[tuple[Kept, torch.Tensor]]:
    own = getattr(cache, "self_attention_cache", cache)
    across = getattr(cache, "cross_attention_cache", None)
    for cross, half in ((False, own), (True, across)):
        for at, layer in enumerate(getattr(half, "layers", ())):
            for attribute, kind in KEPT.items():
                value = getattr(layer, attribute, None)
                several = value if isinstance(value, Mapping) else {0: value}
                for number, tensor in several.items():
                    if isinstance(tensor, torch.Tensor) and tensor.numel():
                        yield Kept(at, kind, number, cross), tensor


def windows_of(cache: Any) -> tuple[int | None, ...]:
    """By layer, how many tokens it sees, where those are not all."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
    return tuple(
        getattr(layer, "sliding_window", None) if getattr(layer, "is_sliding", False) else None
        for layer in layers
    )


def refilled(cache: Any, tensors: Mapping[Kept, torch.Tensor]) -> Any:
    """A cache like this one that holds these tensors, a slot for every token: windows are masks."""
    across = getattr(cache, "cross_attention_cache", None)
    if across is None:
        return _with_layers(cache, tensors, False)
    made = copy.copy(cache)
    made.self_attention_cache = _with_layers(cache.self_attention_cache, tensors, False)
    made.cross_attention_cache = _with_layers(across, tensors, True)
    made.is_updated = dict.fromkeys(range(len(across.layers)), True)
    return made


def _with_layers(cache: Any, tensors: Mapping[Kept, torch.Tensor], cross: bool) -> Any:
    from transformers.cache_utils import DynamicLayer

    made = copy.copy(cache)
    made.layers = []
    for at, layer in enumerate(cache.layers):
        own = {kept: t for kept, t in tensors.items() if (kept.layer, kept.cross) == (at, cross)}
        slides = getattr(layer, "is_sliding", False)
        if slides and any(kept.kind in FIXED for kept in own):
            raise BackendError(f"a {type(layer).__name__} cannot be an input of a graph.")
        new = DynamicLayer() if slides else copy.copy(layer)
        new.is_initialized = True
        for attribute, kind in KEPT.items():
            of_kind = {kept.number: t for kept, t in own.items() if kept.kind == kind}
            if not of_kind:
                continue
            first = next(iter(of_kind.values()))
            new.dtype, new.device = first.dtype, first.device
            if isinstance(getattr(layer, attribute), Mapping):
                # Written to in place, which an input of a graph must not be.
                setattr(new, attribute, {n: t.clone() for n, t in of_kind.items()})
            else:
                setattr(new, attribute, first)
        made.layers.append(new)
    return made
