"""A sequence of tokens fed to a torch module step by step, on the cache that the module keeps.

What is given for all tokens at once (positions, token types) is cut with them; a mask reaches from
the first token to the last one fed; what an encoder is given is encoded once, in the first step.
The states of all steps are joined along their tokens: they are then those of one run on the whole
sequence, which is what the truth computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from driftwalk.decoding import TOKENS, Beams, Decoding
from driftwalk.errors import BackendError, ProbeError
from driftwalk.states import Point

from .cache_points import kept
from .caches import NAMES, begun, cache_name, past_of
from .calls import Inputs, call_as_it_is, first_line, names_taken, own_copies
from .choosing import BeamSearch, Choose, likeliest
from .eager_run import watched
from .encoders import behind_encoder, encoder_of, given_into
from .hooks import TensorSink
from .layout import Layout
from .model_outputs import named_outputs
from .randomness import begin_alike
from .rewinding import cropped, reordered
from .step_masks import JoinedMasks

Run = Callable[[int, Inputs], Any]
"""Makes one step: is handed its number, and what the module is to be called with."""

Watch = Callable[[int, Inputs, Layout, TensorSink], Any]
"""The same, and hands every state of the step on."""


def tokens_of(inputs: Mapping[str, Any]) -> str:
    """The name of the input that holds the sequence."""
    found = next((name for name in TOKENS if name in inputs), None)
    if found is None:
        raise ProbeError(
            f"Only a sequence of tokens ({' or '.join(TOKENS)}) can be decoded step by step; "
            f"the probe has {', '.join(inputs)}."
        )
    return found


def decoded(
    module: nn.Module, inputs: Inputs, plan: Decoding, run: Run | None = None
) -> dict[str, torch.Tensor]:
    """The outputs for the whole sequence, nothing instrumented; eager, unless `run` is given."""
    return Steps(module, inputs, plan).outputs(
        run or (lambda _, given: call_as_it_is(module, given))
    )


def watched_decoding(
    module: nn.Module,
    inputs: Inputs,
    plan: Decoding,
    layout: Layout,
    sink: TensorSink,
    watch: Watch | None = None,
) -> dict[str, torch.Tensor]:
    """The same, and every state of the whole sequence to the sink, and what the cache holds."""
    return _watched(Steps(module, inputs, plan), layout, sink, watch)


def generated(
    module: nn.Module,
    inputs: Inputs,
    plan: Decoding,
    layout: Layout,
    sink: TensorSink,
    watch: Watch | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The same on a sequence that grows: after each step, by the token that is likeliest then.

    Also gives the inputs of the whole sequence.
    """
    steps = Steps(module, inputs, plan, likeliest)
    return _watched(steps, layout, sink, watch), steps.inputs


def searched(
    module: nn.Module, inputs: Inputs, plan: Decoding, beams: int
) -> tuple[dict[str, Any], Beams]:
    """A beam search, nothing instrumented: the inputs that are left at its end, and its steps."""
    search = BeamSearch(beams)
    steps = Steps(module, inputs, plan, search)
    steps.outputs(lambda _, step: call_as_it_is(module, step))
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
    return _watched(Steps(module, inputs, plan), layout, sink, None, given)


def eagerly(module: nn.Module) -> Watch:
    """Steps of a module as it is."""

    def watch(_: int, given: Inputs, layout: Layout, sink: TensorSink) -> Any:
        return watched(module, layout, sink, partial(call_as_it_is, module, given))

    return watch


def _watched(
    steps: Steps,
    layout: Layout,
    sink: TensorSink,
    watch: Watch | None,
    given: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    module = steps.module
    watch = watch or eagerly(module)
    states: dict[Point, list[torch.Tensor]] = {}
    again = replace(layout, stacks=behind_encoder(module, layout.stacks))

    masks = JoinedMasks(again.stacks, steps.bounds, steps.extras)

    def run(number: int, step: Inputs) -> Any:
        return watch(number, step, again if number else layout, partial(keep, number))

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
            sink(point, steps.joined(point.name, tensors))
    logits = outputs.get("logits")
    if logits is not None and not any(point.name == "logits" for point in states):
        sink(Point("logits"), logits)  # a point of another name, and yet what is chosen by
    for point, tensor in kept(steps.cache, layout, steps.past + steps.tokens):
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
        given = self.inputs.pop(self._cached, None)
        self.past = past_of(given)
        # What a state-space model keeps is of a fixed length anyway.
        kind = plan.cache if self._cached == NAMES[0] else "dynamic"
        self.cache = begun(module, kind, self._name, self.past + self.tokens, given)

    def outputs(self, run: Run) -> dict[str, torch.Tensor]:
        """What all steps give, joined."""
        parts: dict[str, list[torch.Tensor]] = {}
        for output in self._run(run):
            for name, tensor in named_outputs(output).items():
                parts.setdefault(name, []).append(tensor)
        return {name: self.joined(name, tensors) for name, tensors in parts.items()}

    def _run(self, run: Run) -> Iterator[Any]:
        begin_alike()
        encoded: dict[str, Any] = {}
        for number, (start, end) in enumerate(self.bounds):
            if (searched := self._after_prompt(number)) > 0 and self._origins is not None:
                self._reorder(self._origins[searched - 1])
            given = self._cut(number, start, end)
            if encoded:
                given = {n: v for n, v in given.items() if self._is_for_decoder(n)} | encoded
            with self._in_step(number) as from_encoder:
                output = run(number, given)
            if self._plan.cache != "none":
                self._take_cache(output)
                if self._rejected:
                    removed = self.extras[number]
                    self.cache = cropped(self.module, self.cache, removed, number == 0)
            encoded = encoded or self._encoded(output, from_encoder)
            yield output
            if end == self._length < self.tokens:
                self._grow(output)

    @contextmanager
    def _in_step(self, number: int) -> Iterator[list[Any]]:
        """Collects what an encoder gives; what fails on the model's own cache is said to."""
        given: list[Any] = []
        encoder = None if number else encoder_of(self.module)
        hook = None if encoder is None else encoder.register_forward_hook(given_into(given))
        try:
            yield given
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            if not number or self._plan.cache == "none":
                raise
            raise BackendError(
                f"{type(self.module).__name__} runs on the prompt, and fails in step {number} on "
                f"the cache that it gave: {type(error).__name__}: {first_line(error)}"
            ) from error
        finally:
            if hook is not None:
                hook.remove()

    def _take_cache(self, output: Any) -> None:
        self.cache = getattr(output, self._cached, None)
        if self.cache is None:
            config = getattr(self.module, "config", None)
            hint = (
                " It is configured as an encoder; a decoder has is_decoder=True in its config."
                if getattr(config, "is_decoder", None) is False
                else ""
            )
            raise BackendError(
                f"{type(self.module).__name__} gave no {self._cached} back, so its next "
                f"token cannot be computed from it.{hint}"
            )

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
            if "cache_position" in names_taken(self.module):  # transformers before 5
                device = self.inputs[self._name].device
                places = torch.arange(start, end + extra, device=device)
                given["cache_position"] = places + self.past
        return given

    def _part(self, name: str, value: Any, start: int, end: int) -> Any:
        if not self._is_along(name, value):
            return value
        # What attends is told of all tokens it may see, a state-space model of those it is fed.
        seen = name.endswith("attention_mask") and self._cached == NAMES[0]
        return value[:, : self.past + end] if seen else value[:, start:end]

    def _is_along(self, name: str, value: Any) -> bool:
        """Whether an input has something for each token of the sequence."""
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            return False
        of_decoder = self._name == TOKENS[1] or name.startswith("decoder_")
        past = self.past if name.endswith("attention_mask") else 0
        return of_decoder and int(value.shape[1]) == past + self._length

    def _encoded(self, output: Any, from_encoder: Sequence[Any]) -> dict[str, Any]:
        """What stands for an encoder's inputs once it has run: all it gave, where that is seen."""
        states = getattr(output, "encoder_last_hidden_state", None)
        if self._name == TOKENS[1] or states is None:
            return {}
        for given in from_encoder:
            if getattr(given, "last_hidden_state", None) is states:
                return {"encoder_outputs": given}
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

    def joined(self, name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """What all steps gave, along their tokens; what the encoder gave is as it is."""
        if len(tensors) == 1 or name.removeprefix("output.").startswith("encoder_"):
            return tensors[0]
        for flat in (False, True):  # True: rows and tokens are one axis
            parts = [self._own(number, tensor, flat) for number, tensor in enumerate(tensors)]
            own = [part for part in parts if part is not None]
            if len(own) == len(parts):
                whole = torch.cat(own, 1)
                return whole.flatten(0, 1) if flat else whole
        sizes = zip(tensors, self.counts, strict=True)
        if all(t.ndim >= 2 and t.shape[:2] == (n, self.rows) for t, n in sizes):
            return torch.cat(list(tensors), 0)
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
