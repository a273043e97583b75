"""A model that decodes, as graphs: one for the prompt, one for every step after it.

Where all that is kept are keys and values, one graph serves both: what it keeps and what it is fed
may be of any length, and the prompt is fed with nothing kept. A decoder behind an encoder has two:
the first runs the encoder, the other takes what it gave. States of a fixed size (Mamba) have two:
the prompt's is made for its length, the other takes one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.decoding import TOKENS, Decoding
from driftwalk.dtypes import Array
from driftwalk.errors import BackendError
from driftwalk.spec import Spec
from driftwalk.states import Probe

from ..caches import cache_name
from ..calls import call_as_it_is, explaining, inputs_for, own_copies, quietly, tensors_only
from ..decoding import decoded, tokens_of
from ..encoders import behind_encoder
from ..layout import Layout
from ..loaded import LoadedModel
from .export import Exports, export, layout_of
from .exported import Exported
from .exporters import Exporter
from .exposed import GraphCall
from .past import FIXED, Kept, refilled, tensors_of, windows_of

FED, AFTER = 3, 2
"""Tokens of the sample that a graph is made with: first so many, then so many on what was kept."""
ENCODED = "encoder_hidden_states"
"""What a graph calls the input that stands for an encoder."""
_ENCODER = "encoder_outputs"
"""What transformers calls it."""


@dataclass(frozen=True)
class DecoderGraphs:
    """The graphs of one model, for the prompt and for what follows."""

    first: Exported
    after: Exported
    layout: Layout
    windows: tuple[int | None, ...]
    """By layer, how many tokens it sees, where those are not all."""


def decoder_graphs(exports: Exports, probe: Probe, plan: Decoding) -> DecoderGraphs:
    """Made for sequences like this probe's, fed like this."""
    sample = shortened(probe, FED + AFTER)
    name = type(exports.model.module).__name__
    begun, layout = begun_on(exports.model, probe, exports.dtype, exports.spec)
    if begun.is_fixed and plan.cache == "none" and len(plan.chunks) > 1:
        raise BackendError(
            f"{name} keeps states of a fixed size: a graph of it is made for one length of the "
            "prompt, and cannot be fed all tokens again in each step (--cache none)."
        )

    def write_after(module: nn.Module, layout: Layout, folder: Path, exporter: Exporter) -> None:
        begun = _begun(module, sample, 1 if fixed else AFTER)
        stacks = behind_encoder(module, layout.stacks)
        called = _going_on(module, begun)
        export(module, replace(layout, stacks=stacks), called, folder, exporter)

    def write_first(module: nn.Module, layout: Layout, folder: Path, exporter: Exporter) -> None:
        export(module, layout, _beginning(module, made_for, fixed), folder, exporter)

    fixed = begun.is_fixed
    after = exports.made(["past", *sample.forms()], sample, write_after, use_cache=True)
    first = after
    if fixed or begun.has_encoder:
        made_for = shortened(probe, next(iter(plan.chunks), 0)) if fixed else sample
        first = exports.made(["prompt", *made_for.forms()], made_for, write_first, use_cache=True)
    return DecoderGraphs(first, after, layout, windows_of(begun.cache))


def begun_on(model: LoadedModel, probe: Probe, dtype: str, spec: Spec) -> tuple[Begun, Layout]:
    """What the torch model keeps of sequences like this probe's, and its points."""
    sample, module = shortened(probe, FED + AFTER), model.at(dtype, "cpu", for_export=True)
    with quietly(module), explaining(model.label, spec):
        begun = _begun(module, sample, 1)
    if not begun.tensors:
        raise BackendError(
            f"{type(module).__name__} keeps a {type(begun.cache).__name__}, which cannot be an "
            "input of a graph: it has no layers of keys and values, or of states."
        )
    return begun, layout_of(model, module, sample, spec, use_cache=True)


def shortened(probe: Probe, tokens: int) -> Probe:
    """The end of each row, so long; of a shorter one, the last token again. 0: as it is."""
    name = tokens_of(probe.inputs)
    rows, length = probe.inputs[name].shape
    tokens = tokens or length
    at = np.minimum(np.arange(tokens) + max(0, length - tokens), length - 1)

    def cut(own: str, array: Array) -> Array:
        along = array.ndim >= 2 and array.shape[:2] == (rows, length) and _is_own(own, name)
        return array[:, at] if along else array

    inputs = {own: cut(own, array) for own, array in probe.inputs.items()}
    return Probe(inputs, probe.origin, others=probe.others)


def _is_own(name: str, tokens: str) -> bool:
    """Whether an input belongs to the sequence, and not to an encoder before it."""
    return tokens == TOKENS[1] or name.startswith("decoder_")


@dataclass(frozen=True, eq=False)
class Begun:
    """What a module was called with in the last of some steps, and what it had kept by then."""

    given: Mapping[str, Any]
    cache: Any
    tensors: Mapping[Kept, torch.Tensor]

    @property
    def is_fixed(self) -> bool:
        return any(kept.kind in FIXED for kept in self.tensors)

    @property
    def has_encoder(self) -> bool:
        return _ENCODER in self.given


def _begun(module: nn.Module, sample: Probe, after: int) -> Begun:
    """A call on what the first tokens left, as decoding makes it."""
    seen: list[Begun] = []
    name = cache_name(module)

    def note(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        cache = kwargs.get(name)
        tensors = {kept: t.clone() for kept, t in tensors_of(cache).items()}
        seen.append(Begun({n: v for n, v in kwargs.items() if n != name}, cache, tensors))

    inputs = inputs_for(module, sample, torch.device("cpu"))
    hook = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        decoded(module, inputs, Decoding((FED + AFTER - after, after)))
    finally:
        hook.remove()
    return seen[-1]


def _going_on(module: nn.Module, begun: Begun) -> GraphCall:
    """The call of a step on what was kept."""
    cached = cache_name(module)
    tensors = tensors_only(begun.given)
    others = {n: v for n, v in begun.given.items() if n not in tensors and n != _ENCODER}
    open_axes = {} if begun.is_fixed else _along(tensors)
    if begun.has_encoder:
        tensors[ENCODED] = begun.given[_ENCODER].last_hidden_state
    for kept, tensor in begun.tensors.items():
        tensors[kept.past] = tensor
        if kept.kind not in FIXED and not kept.cross:
            open_axes[kept.past] = 2

    def run(given: dict[str, torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        held = {kept: given.pop(kept.past) for kept in begun.tensors}
        if ENCODED in given:
            from transformers.modeling_outputs import BaseModelOutput

            given[_ENCODER] = BaseModelOutput(last_hidden_state=given.pop(ENCODED))
        given[cached] = refilled(begun.cache, held)
        output = call_as_it_is(module, {**given, **others})
        return output, _present(getattr(output, cached, None), cross=False)

    return GraphCall(tensors, run, open_axes)


def _beginning(module: nn.Module, probe: Probe, fixed: bool) -> GraphCall:
    """The call of a prompt, which leaves something to go on with."""
    inputs = inputs_for(module, probe, torch.device("cpu"))
    tensors = tensors_only(inputs)
    others = {n: v for n, v in inputs.items() if n not in tensors}
    cached = cache_name(module)

    def run(given: dict[str, torch.Tensor]) -> tuple[Any, dict[str, torch.Tensor]]:
        output = call_as_it_is(module, {**given, **own_copies(others)}, use_cache=True)
        return output, _present(getattr(output, cached, None), cross=True)

    return GraphCall(tensors, run, {} if fixed else _along(tensors))


def _present(cache: Any, cross: bool) -> dict[str, torch.Tensor]:
    return {k.present: t.clone() for k, t in tensors_of(cache).items() if cross or not k.cross}


def _along(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The axis along the tokens, of each input that has one."""
    name = tokens_of(tensors)
    fed = tensors[name].shape[1]
    found = {n: 1 for n, t in tensors.items() if t.ndim >= 2 and t.shape[1] == fed}
    found |= {n: 1 for n, t in tensors.items() if n.endswith("attention_mask") and t.ndim == 2}
    open_axes = {n: axis for n, axis in found.items() if _is_own(n, name)}
    return open_axes | ({"cache_position": 0} if "cache_position" in tensors else {})
