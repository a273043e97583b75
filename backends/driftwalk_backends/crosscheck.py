"""Points of a model, confirmed by the model itself: captures against its `hidden_states`.

`hidden_states[i]` must equal the capture before block i bit for bit; the last one must equal either
the raw output of the last block (ViT) or the state after the final norm (GPT-2, Llama).
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError
from driftwalk.states import Point

from .hooks import capture
from .model_outputs import LOSS, find_outputs, given_by
from .points import Layout, Stack, find_stacks, stacks_by_hand
from .shared import watch_shared
from .tensors import get, output_tensors, same_values
from .watching import Hook, hooked

Run = Callable[..., Any]
States = dict[str, torch.Tensor]


def find_layout(module: nn.Module, run: Run, blocks: str | None = None) -> Layout:
    """Find all points by watching runs of the model; `run(**extra)` calls it on the probe."""
    plain: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def plainly() -> Any:
        """Also note what the model gives where nobody asks it for more."""
        nonlocal plain, skipped
        output = run()
        given = given_by(output)
        plain, skipped = tuple(given.tensors), tuple(given.skipped)
        return output

    if blocks:
        stacks = stacks_by_hand(module, [part.strip() for part in blocks.split(",")], plainly)
    else:
        stacks, notes = find_stacks(module, plainly)
    states: States = {}
    unhooked: States = {}
    made = _Made()
    wants = _takes_hidden_states(module)

    def keep(kept: States, point: Point, tensor: torch.Tensor) -> None:
        kept[point.name] = tensor.clone()

    with ExitStack() as watched:
        finish = watched.enter_context(capture(module, Layout(stacks), partial(keep, states)))
        watched.enter_context(hooked(made.hooks(module)))
        # Transformers records hidden_states with a hook, which may be older than the user's own.
        unchanged = capture(module, Layout(stacks), partial(keep, unhooked), first=True)
        watched.enter_context(unchanged)
        shared = [
            watched.enter_context(watch_shared(module, stack.blocks, stack.takes, stack.before))
            for stack in stacks
        ]
        output = run(output_hidden_states=True) if wants else run()
        finish(())  # which outputs are points is what we are about to find out
    stacks = tuple(
        replace(stack, shared=shared_with(states.values()))
        for stack, shared_with in zip(stacks, shared, strict=True)
    )
    skipped = (*(name for name in plain if name == LOSS), *skipped)
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

    def hooks(self, module: nn.Module) -> Iterator[Hook]:
        for path, part in module.named_modules():
            if path:
                yield part, None, partial(self._add, path)

    def _add(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            self._latest.append((path, output))
        self._all += [(path, weakref.ref(tensor)) for tensor in output_tensors(output)]

    def maker(self, tensor: torch.Tensor) -> str:
        """The innermost module that gave this tensor; empty where it was made outside of all."""
        makers = [path for path, given in self._all if given() is tensor]
        makers = makers or [path for path, given in self._latest if same_values(given, tensor)]
        return max(makers, key=lambda path: path.count("."), default="")


def _confirm(
    stacks: Sequence[Stack], states: States, output: Any, strict: bool, unhooked: States
) -> str:
    """Which of the model's tuples confirmed which stack, in words; a contradiction is an error."""
    tuples = {
        key: value
        for key in ("encoder_hidden_states", "decoder_hidden_states", "hidden_states")
        if isinstance(value := get(output, (key,)), tuple | list) and len(value)
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
    stack: Stack, states: States, own: Sequence[torch.Tensor], unhooked: States
) -> tuple[str, str]:
    """A problem, or what the last hidden state is: `raw` or `normed`."""
    depth = len(stack.blocks)
    if len(own) != depth + 1:
        return f"{stack.path} has {depth} blocks, but hidden_states has {len(own)} entries", ""

    def is_state(number: int, name: str) -> bool:
        """Bit for bit, except that NaN equals NaN, and that the model may cast a state for the
        next block: a model may overflow and still be understood."""
        captured = (tensors[name] for tensors in (states, unhooked) if name in tensors)
        return any(same_values(own[number], tensor) for tensor in captured)

    embed, *layers = (point.name for point in stack.points[: depth + 1])
    for number, name in enumerate([embed, *layers[:-1]]):
        if not is_state(number, name):
            return f"{name} differs from hidden_states[{number}]", ""
    if is_state(-1, layers[-1]):
        return "", "raw"
    if stack.norm and is_state(-1, stack.points[-1].name):
        return "", "normed"
    return "hidden_states[-1] is neither the last block's output nor the final norm's", ""
