"""A sequence of tokens fed to a torch module step by step, on the cache that the module keeps.

What is given for all tokens at once (positions, token types) is cut with them; a mask reaches from
the first token to the last one fed; what an encoder is given is encoded once, in the first step.
The states of all steps are joined along their tokens: they are then those of one run on the whole
sequence, which is what the truth computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from driftwalk.decoding import TOKENS, Beams, Decoding
from driftwalk.errors import BackendError, ProbeError
from driftwalk.states import Point

from .calls import Inputs, call_as_it_is, forward_of, own_copies
from .choosing import BeamSearch, Choose, likeliest
from .eager_run import watched
from .hooks import TensorSink
from .layout import Layout, Stack
from .model_outputs import named_outputs
from .randomness import begin_alike
from .rewinding import cropped, reordered
from .step_masks import JoinedMasks

_CACHES = ("past_key_values", "cache_params", "state")
"""What forwards call the cache that they take; their output has it under the same name."""

KEPT = {"keys": "key", "values": "value", "conv_states": "conv", "recurrent_states": "recurrent"}
"""What a layer of a cache may hold, and what that is called in the name of a point."""

Run = Callable[[int, Callable[[], Any]], Any]
"""Makes one step: is handed its number, and how to call the module."""


def tokens_of(inputs: Mapping[str, Any]) -> str:
    """The name of the input that holds the sequence."""
    found = next((name for name in TOKENS if name in inputs), None)
    if found is None:
        raise ProbeError(
            f"Only a sequence of tokens ({' or '.join(TOKENS)}) can be decoded step by step; "
            f"the probe has {', '.join(inputs)}."
        )
    return found


def cache_name(module: nn.Module) -> str:
    """What the module's forward calls its cache; an error where it takes none."""
    names = forward_of(module).names
    found = next((name for name in _CACHES if name in names and "use_cache" in names), None)
    if found is None:
        raise BackendError(
            f"{type(module).__name__} keeps no cache: its forward takes none of "
            f"{', '.join(_CACHES)}, so it cannot be decoded step by step."
        )
    return found


def decoded(module: nn.Module, inputs: Inputs, plan: Decoding) -> dict[str, torch.Tensor]:
    """The outputs for the whole sequence, nothing instrumented."""
    return Steps(module, inputs, plan).outputs(lambda _, call: call())


def watched_decoding(
    module: nn.Module, inputs: Inputs, plan: Decoding, layout: Layout, sink: TensorSink
) -> dict[str, torch.Tensor]:
    """The same, and every state of the whole sequence to the sink, and what the cache holds."""
    return _watched(Steps(module, inputs, plan), layout, sink)


def generated(
    module: nn.Module, inputs: Inputs, plan: Decoding, layout: Layout, sink: TensorSink
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The same on a sequence that grows: after each step, by the token that is likeliest then.

    Also gives the inputs of the whole sequence.
    """
    steps = Steps(module, inputs, plan, likeliest)
    return _watched(steps, layout, sink), steps.inputs


def searched(
    module: nn.Module, inputs: Inputs, plan: Decoding, beams: int
) -> tuple[dict[str, Any], Beams]:
    """A beam search, nothing instrumented: the inputs that are left at its end, and its steps."""
    search = BeamSearch(beams)
    steps = Steps(module, inputs, plan, search)
    steps.outputs(lambda _, call: call())
    return steps.inputs, search.made


def restored(
    module: nn.Module,
    inputs: Inputs,
    plan: Decoding,
    layout: Layout,
    given: Mapping[str, torch.Tensor],
    sink: TensorSink,
) -> dict[str, torch.Tensor]:
    """As `watched_decoding`, with the given states, of the whole sequence, in place of its own."""
    return _watched(Steps(module, inputs, plan), layout, sink, given)


def _watched(
    steps: Steps,
    layout: Layout,
    sink: TensorSink,
    given: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    module = steps.module
    states: dict[Point, list[torch.Tensor]] = {}
    again = replace(layout, stacks=behind_encoder(module, layout.stacks))

    masks = JoinedMasks(again.stacks, steps.bounds, steps.extras)

    def run(number: int, call: Callable[[], Any]) -> Any:
        return watched(module, again if number else layout, partial(keep, number), call)

    def keep(number: int, point: Point, tensor: torch.Tensor) -> torch.Tensor | None:
        if masks.has(point, tensor):
            masks.add(point, number, tensor)
            states.setdefault(point, [])
            return None
        whole = given.get(point.name)
        other = None if whole is None else steps.part_of(whole, number, tensor)
        states.setdefault(point, []).append((tensor if other is None else other).detach().clone())
        return other

    outputs = steps.outputs(run)
    for point, tensors in states.items():
        if not tensors:
            sink(point, masks.joined(point))
        elif len(tensors) in (1, len(steps.counts)):
            sink(point, steps.joined(tensors))
    for point, tensor in kept_by_layer(steps.cache, layout, steps.tokens):
        sink(point, tensor)
    return outputs


class Steps:
    """The steps of one sequence; one that grows, by what is chosen, has only its first tokens."""

    def __init__(
        self, module: nn.Module, inputs: Inputs, plan: Decoding, choose: Choose | None = None
    ) -> None:
        self.module, self._plan, self.inputs = module, plan, own_copies(inputs)
        self._name, self._choose = tokens_of(inputs), choose
        self.rows, self._length = inputs[self._name].shape[:2]
        self.tokens = sum(plan.chunks) if choose else self._length
        self.bounds = list(plan.steps(self.tokens))
        self.counts = [end - start for start, end in self.bounds]
        begins = any(end == self._length for _, end in self.bounds)
        if sum(self.counts) != self.tokens or not begins:
            raise ProbeError(
                f"The steps take {sum(self.counts)} tokens; the sequence has {self._length}."
            )
        device = self.inputs[self._name].device
        beams = plan.beams
        self._lineage = torch.tensor(beams.lineage(), device=device) if beams else None
        self._origins = torch.tensor(beams.origins, device=device) if beams else None
        self._fed = beams.fed() if beams else []
        """By row, for every step that feeds the choices of a search: all of them so far."""
        self._rejected = [torch.tensor(rows, device=device) for rows in plan.rejected]
        self.extras = [rows.shape[1] for rows in self._rejected] or [0] * len(self.counts)
        """How many tokens each step is fed that are taken back."""
        self._cached = cache_name(module)
        self.cache: Any = self._begun()

    def _begun(self) -> Any:
        """The cache of the first step; None: the module makes its own."""
        if self._plan.cache != "static" or self._cached != _CACHES[0]:
            return None  # what a state-space model keeps is of a fixed length anyway
        from transformers import DynamicCache, EncoderDecoderCache, StaticCache

        config: Any = self.module.config
        try:
            own = StaticCache(config=config, max_cache_len=self.tokens)
            return EncoderDecoderCache(own, DynamicCache()) if self._name == TOKENS[0] else own
        except Exception as error:  # of a model that has no such cache
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise BackendError(
                f"{type(self.module).__name__} takes no static cache: {said}"
            ) from error

    def outputs(self, run: Run) -> dict[str, torch.Tensor]:
        """What all steps give, joined."""
        parts: dict[str, list[torch.Tensor]] = {}
        for output in self._run(run):
            for name, tensor in named_outputs(output).items():
                parts.setdefault(name, []).append(tensor)
        return {name: self.joined(tensors) for name, tensors in parts.items()}

    def _run(self, run: Run) -> Iterator[Any]:
        begin_alike()
        encoded: dict[str, Any] = {}
        for number, (start, end) in enumerate(self.bounds):
            if (searched := self._after_prompt(number)) > 0 and self._origins is not None:
                self._reorder(self._origins[searched - 1])
            given = self._cut(number, start, end)
            if encoded:
                given = {n: v for n, v in given.items() if self._is_for_decoder(n)} | encoded
            output = run(number, partial(call_as_it_is, self.module, given))
            if self._plan.cache != "none":
                self.cache = getattr(output, self._cached, None)
                if self.cache is None:
                    raise BackendError(
                        f"{type(self.module).__name__} gave no {self._cached} back, so its next "
                        "token cannot be computed from it."
                    )
                if self._rejected:
                    removed = self.extras[number]
                    self.cache = cropped(self.module, self.cache, removed, number == 0)
            encoded = encoded or self._encoded(output)
            yield output
            if end == self._length < self.tokens:
                self._grow(output)

    def _grow(self, output: Any) -> None:
        """Have the sequence go on with the token that is likeliest."""
        logits = named_outputs(output).get("logits")
        if logits is None or logits.ndim != 3:
            raise BackendError(f"{type(self.module).__name__} gives no logits to go on with.")
        assert self._choose is not None
        chosen, origins = self._choose(logits[:, -1])
        if origins is not None:
            self._reorder(origins)
        for name, value in self.inputs.items():
            if self._is_along(name, value):
                rows = value if origins is None else value[origins]
                self.inputs[name] = self._longer(name, rows, chosen[:, None])
        self._length += 1

    def _longer(self, name: str, value: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """An input that has something for each token, with tokens behind those it is for."""
        last = value[:, -1:].expand(-1, tokens.shape[1], *value.shape[2:])
        if name == self._name:
            last = tokens
        elif name.endswith("attention_mask"):
            last = torch.ones_like(last)
        elif name.endswith("position_ids"):
            last = last + torch.arange(1, tokens.shape[1] + 1, device=last.device)
        return torch.cat([value, last.to(value.dtype)], 1)

    def _reorder(self, origins: torch.Tensor) -> None:
        if self.cache is not None:
            self.cache = reordered(self.module, self.cache, origins)

    def _after_prompt(self, step: int) -> int:
        """The number of a step, counted from the last one that is fed of the prompt."""
        beams = self._plan.beams
        return step - (len(self.bounds) - 1 - len(beams.origins)) if beams else 0

    def _cut(self, step: int, start: int, end: int) -> dict[str, Any]:
        """The inputs of one step."""
        if self._plan.cache == "none":
            start = 0
        given = {name: self._part(name, value, start, end) for name, value in self.inputs.items()}
        if (searched := self._after_prompt(step)) > 0:
            # Rows that are given up later are fed what they chose, too.
            own = given[self._name]
            fed = torch.tensor(self._fed[searched], device=own.device, dtype=own.dtype)
            fed = fed[:, -own.shape[1] :]
            given[self._name] = torch.cat([own[:, : own.shape[1] - fed.shape[1]], fed], 1)
        if extra := self.extras[step]:
            for name, value in self.inputs.items():
                if self._is_along(name, value):
                    given[name] = self._longer(name, given[name], self._rejected[step])
        if self._plan.cache == "none":
            return given
        given["use_cache"] = True
        if self.cache is not None:
            given[self._cached] = self.cache
            if "cache_position" in forward_of(self.module).names:  # transformers before 5
                device = self.inputs[self._name].device
                given["cache_position"] = torch.arange(start, end + extra, device=device)
        return given

    def _part(self, name: str, value: Any, start: int, end: int) -> Any:
        if not self._is_along(name, value):
            return value
        # What attends is told of all tokens it may see, a state-space model of those it is fed.
        seen = name.endswith("attention_mask") and self._cached == _CACHES[0]
        return value[:, :end] if seen else value[:, start:end]

    def _is_along(self, name: str, value: Any) -> bool:
        """Whether an input has something for each token of the sequence."""
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return False
        of_decoder = self._name == TOKENS[1] or name.startswith("decoder_")
        return of_decoder and value.shape[1] == self._length

    def _encoded(self, output: Any) -> dict[str, Any]:
        """What stands for an encoder's inputs once it has run."""
        states = getattr(output, "encoder_last_hidden_state", None)
        if self._name == TOKENS[1] or states is None:
            return {}
        from transformers.modeling_outputs import BaseModelOutput

        return {"encoder_outputs": BaseModelOutput(last_hidden_state=states)}

    def _is_for_decoder(self, name: str) -> bool:
        """Whether an input is still of use once an encoder has run."""
        own = ("attention_mask", "use_cache", "cache_position", self._cached)
        return name in own or name.startswith("decoder_")

    def part_of(self, whole: torch.Tensor, number: int, like: torch.Tensor) -> torch.Tensor | None:
        """What a step has of a state of the whole sequence; None where that cannot be told."""
        if whole.shape != like.shape and whole.ndim == like.ndim >= 2:
            end = self.bounds[number][1]
            whole = whole[:, end - like.shape[1] : end]
        return whole.to(like) if whole.shape == like.shape else None

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """What all steps gave, along their tokens; what only the first gave is as it is."""
        if len(tensors) == 1:
            return tensors[0]
        for flat in (False, True):  # True: rows and tokens are one axis
            parts = [self._own(number, tensor, flat) for number, tensor in enumerate(tensors)]
            own = [part for part in parts if part is not None]
            if len(own) == len(parts):
                whole = torch.cat(own, 1)
                return whole.flatten(0, 1) if flat else whole
        return tensors[-1]

    def _own(self, step: int, tensor: torch.Tensor, flat: bool) -> torch.Tensor | None:
        """What a step gave for its own tokens; None: it is not by token."""
        (_, end), count, extra = self.bounds[step], self.counts[step], self.extras[step]
        fed = [count + extra, *([end + extra] if self._plan.cache == "none" else [])]
        if flat:
            several = [n for n in fed if tensor.ndim and tensor.shape[0] == self.rows * n]
            if not several:
                return None
            tensor = tensor.reshape(self.rows, -1, *tensor.shape[1:])
        if tensor.ndim < 2 or tensor.shape[1] not in fed:
            return None
        own = tensor[:, tensor.shape[1] - extra - count : tensor.shape[1] - extra]
        if self._lineage is None or own.shape[0] != self.rows:
            return own
        return own[self._lineage[max(0, self._after_prompt(step))]]


def behind_encoder(module: nn.Module, stacks: tuple[Stack, ...]) -> tuple[Stack, ...]:
    """The stacks that run in every step: an encoder's run in the first alone."""
    get = getattr(module, "get_encoder", None)
    config = getattr(module, "config", None)
    if get is None or not getattr(config, "is_encoder_decoder", False):
        return stacks
    inside = {id(part) for part in get().modules()}
    return tuple(s for s in stacks if id(module.get_submodule(s.blocks[0])) not in inside)


def kept_by_layer(cache: Any, layout: Layout, tokens: int) -> Iterator[tuple[Point, torch.Tensor]]:
    """What each layer of a cache holds at the end: keys and values by token, other states whole."""
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", ())
    stack = next((s for s in reversed(layout.stacks) if len(s.layers) == len(layers)), None)
    if stack is None:
        return
    for point, layer in zip(stack.layers, layers, strict=True):
        for held, kind in KEPT.items():
            value = getattr(layer, held, None)
            # A layer may hold several states of a kind, by number.
            several = value.values() if isinstance(value, Mapping) else [value]
            for number, tensor in enumerate(several):
                if not isinstance(tensor, torch.Tensor) or not tensor.numel():
                    continue
                name = f"{point.name}.{kind}" + (f".{number}" if number else "")
                by_slot = held in ("keys", "values")
                yield (
                    Point(name, point.module),
                    (_by_slot(layer, tensor, tokens) if by_slot else tensor),
                )


def _by_slot(layer: Any, tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """Keys or values, (row, head, slot, channel), as (row, slot, channel of all heads).

    The slots in use; of a window, those that the next token can see.
    """
    window = getattr(layer, "sliding_window", None) or getattr(layer, "max_cache_len", None)
    slides = getattr(layer, "is_sliding", False) and window is not None and tokens >= window
    fixed = getattr(layer, "max_cache_len", None) is not None  # and what is not in use is zero
    used = tensor[:, :, :tokens] if fixed else tensor
    used = tensor[:, :, -(window - 1) :] if slides and window else used
    return used.transpose(1, 2).flatten(2)
