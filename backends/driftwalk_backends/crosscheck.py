"""Points of a model, confirmed by the model itself: captures against its `hidden_states`.

`hidden_states[i]` must equal the capture before block i bit for bit; the last one must equal either
the raw output of the last block (ViT) or the state after the final norm (GPT-2, Llama).
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError
from driftwalk.states import Point

from .hooks import capture
from .model_outputs import LOSS, find_outputs, given_by
from .points import Layout, Stack, find_stacks, stacks_by_hand
from .shared import watch_shared
from .tensors import output_tensors, same_values

Run = Callable[..., Any]


def find_layout(module: nn.Module, run: Run, blocks: str | None = None) -> Layout:
    """Find all points by watching runs of the model; `run(**extra)` calls it on the probe."""
    plain: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def plainly() -> Any:
        """Also note what the model gives where nobody asks it for more."""
        nonlocal plain, skipped
        output = run()
        given = given_by(output)
        loss = [LOSS] if LOSS in given.tensors else []
        plain, skipped = tuple(given.tensors), (*loss, *given.skipped)
        return output

    if blocks:
        stacks = stacks_by_hand(module, [part.strip() for part in blocks.split(",")], plainly)
        notes: tuple[str, ...] = ()
    else:
        stacks, notes = find_stacks(module, plainly)
    states: dict[str, torch.Tensor] = {}
    layout = Layout(stacks)
    wants = _takes_hidden_states(module)

    def keep(point: Point, tensor: torch.Tensor) -> None:
        states[point.name] = tensor.clone()

    with ExitStack() as watched:
        finish = watched.enter_context(capture(module, layout, keep))
        made = watched.enter_context(_module_outputs(module))
        unhooked = watched.enter_context(_unhooked_outputs(module, stacks))
        shared = [
            watched.enter_context(watch_shared(module, stack.blocks, stack.takes, stack.before))
            for stack in stacks
        ]
        output = run(output_hidden_states=True) if wants else run()
        finish(())  # which outputs are points is what we are about to find out
    stacks = tuple(
        replace(stack, shared=found(states.values()))
        for stack, found in zip(stacks, shared, strict=True)
    )
    outputs = replace(find_outputs(plain, output, states, made.maker), skipped=skipped)
    confirmed = "unchecked"
    if wants:
        strict = blocks is None and not any(_has_hooks(module, stack) for stack in stacks)
        confirmed = _confirm(stacks, states, output, strict=strict, unhooked=unhooked)
    return Layout(stacks, outputs, confirmed, notes)


def _has_hooks(module: nn.Module, stack: Stack) -> bool:
    """Whether blocks have hooks of the user's own, which are part of what they compute.

    The model's hidden_states may be taken before or after such a hook; captures come after it.
    """
    parts = [module.get_submodule(path) for path in (*stack.blocks, *filter(None, [stack.norm]))]
    hooks = (h for p in parts for h in (*p._forward_hooks.values(), *p._forward_pre_hooks.values()))
    return any(not getattr(hook, "__module__", "").startswith("transformers.") for hook in hooks)


def _takes_hidden_states(module: nn.Module) -> bool:
    """Transformers models take the flag; a plain module is asked nothing it does not know."""
    if not hasattr(module, "config"):
        return False
    parameters = inspect.signature(module.forward).parameters.values()
    return any(p.name == "output_hidden_states" or p.kind is p.VAR_KEYWORD for p in parameters)


class _Made:
    """What modules gave: the last few tensors, and of all others whether they are still alive."""

    def __init__(self) -> None:
        self._latest: deque[tuple[str, torch.Tensor]] = deque(maxlen=16)
        self._all: list[tuple[str, weakref.ref[torch.Tensor]]] = []

    def add(self, path: str, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self._latest.append((path, output))
        self._all += [(path, weakref.ref(tensor)) for tensor in output_tensors(output)]

    def maker(self, tensor: torch.Tensor) -> str:
        """The innermost module that gave this tensor; empty where it was made outside of all."""
        makers = [path for path, given in self._all if given() is tensor]
        makers = makers or [path for path, given in self._latest if _equal(given, tensor)]
        return max(makers, key=lambda path: path.count("."), default="")


@contextmanager
def _module_outputs(module: nn.Module) -> Iterator[_Made]:
    """What every module inside gives in a run."""
    made = _Made()

    def watch(path: str) -> Callable[..., None]:
        return lambda part, args, output: made.add(path, output)

    parts = [(path, part) for path, part in module.named_modules() if path]
    handles = [part.register_forward_hook(watch(path)) for path, part in parts]
    try:
        yield made
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _unhooked_outputs(
    module: nn.Module, stacks: Sequence[Stack]
) -> Iterator[dict[str, torch.Tensor]]:
    """What blocks gave before any hook changed it, by point: transformers records it with a hook,
    which may be older than the user's own."""
    found: dict[str, torch.Tensor] = {}
    handles = []

    def watch(stack: Stack) -> Callable[..., None]:
        calls = iter(range(len(stack.blocks)))

        def hook(part: nn.Module, args: Any, output: Any) -> None:
            number, given = next(calls, None), output_tensors(output)
            if number is not None and given:
                found[stack.name(f"layer.{number}")] = given[0].clone()

        return hook

    for stack in stacks:
        parts = [module.get_submodule(path) for path in dict.fromkeys(stack.blocks)]
        hook = watch(stack)
        handles += [part.register_forward_hook(hook, prepend=True) for part in parts]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _confirm(
    stacks: Sequence[Stack],
    states: Mapping[str, torch.Tensor],
    output: Any,
    strict: bool,
    unhooked: Mapping[str, torch.Tensor],
) -> str:
    """Which of the model's tuples confirmed which stack, in words; a contradiction is an error."""
    tuples = {
        key: value
        for key in ("encoder_hidden_states", "decoder_hidden_states", "hidden_states")
        if isinstance(value := _get(output, key), tuple | list) and len(value)
    }
    if not tuples:
        return "unchecked"
    words, problems = [], []
    for stack in stacks:
        own = tuples.get(f"{stack.prefix}_hidden_states", tuples.get("hidden_states"))
        if own is None:
            continue
        problem, last = _compare(stack, states, own, unhooked)
        if problem:
            problems.append(problem)
        else:
            words.append(f"{stack.name('hidden_states[-1]')} is {last}")
    # With several stacks, one `hidden_states` tuple can speak for one of them only.
    if problems and (not words or len(tuples) > 1):
        if not strict:
            return f"not confirmed: {problems[0]}"
        raise ModelError(
            "The states captured from the blocks are not the model's own hidden_states: "
            f"{problems[0]}. driftwalk does not trust its own reading of this model. Name the "
            "stack of blocks by hand: blocks='path.to.stack' (--blocks)."
        )
    return "; ".join(words)


def _compare(
    stack: Stack,
    states: Mapping[str, torch.Tensor],
    own: Sequence[torch.Tensor],
    unhooked: Mapping[str, torch.Tensor],
) -> tuple[str, str]:
    """A problem, or what the last hidden state is: `raw` or `normed`."""
    depth = len(stack.blocks)
    if len(own) != depth + 1:
        return f"{stack.path} has {depth} blocks, but hidden_states has {len(own)} entries", ""
    names = ["embed", *(f"layer.{i}" for i in range(depth - 1))]
    for number, name in enumerate(names):
        at = stack.name(name)
        if not (_equal(own[number], states[at]) or _is(own[number], unhooked.get(at))):
            return f"{stack.name(name)} differs from hidden_states[{number}]", ""
    last = stack.name(f"layer.{depth - 1}")
    if _equal(own[-1], states[last]) or _is(own[-1], unhooked.get(last)):
        return "", "raw"
    if stack.norm and _equal(own[-1], states[stack.name("norm")]):
        return "", "normed"
    return "hidden_states[-1] is neither the last block's output nor the final norm's", ""


def _is(tensor: torch.Tensor, known: torch.Tensor | None) -> bool:
    return known is not None and _equal(tensor, known)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, except that NaN equals NaN: a model may overflow and still be understood.

    A state that the model itself casts for the next block is the same state.
    """
    return same_values(a, b)


def _get(output: Any, key: str) -> Any:
    return output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
