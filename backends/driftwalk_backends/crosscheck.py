"""Points of a model, confirmed by the model itself: captures against its `hidden_states`.

`hidden_states[i]` must equal the capture before block i bit for bit; the last one must equal either
the raw output of the last block (ViT) or the state after the final norm (GPT-2, Llama).
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from driftwalk.errors import ModelError
from driftwalk.states import Point

from .hooks import capture
from .model_outputs import LOSS, find_outputs, given_by
from .model_outputs import equal as _equal
from .points import Layout, Stack, find_stacks, stacks_by_hand
from .tensors import output_tensors

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
    else:
        stacks = find_stacks(module, plainly)
    states: dict[str, torch.Tensor] = {}
    layout = Layout(stacks)
    wants = _takes_hidden_states(module)

    def keep(point: Point, tensor: torch.Tensor) -> None:
        states[point.name] = tensor.clone()

    with (
        capture(module, layout, keep) as finish,
        _module_outputs(module) as made,
    ):
        output = run(output_hidden_states=True) if wants else run()
        finish(())  # which outputs are points is what we are about to find out
    outputs = find_outputs(plain, output, states, made.maker)
    confirmed = _confirm(stacks, states, output, strict=blocks is None) if wants else "unchecked"
    return replace(layout, outputs=replace(outputs, skipped=skipped), confirmed=confirmed)


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


def _confirm(
    stacks: Sequence[Stack], states: Mapping[str, torch.Tensor], output: Any, strict: bool
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
        problem, last = _compare(stack, states, own)
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
    stack: Stack, states: Mapping[str, torch.Tensor], own: Sequence[torch.Tensor]
) -> tuple[str, str]:
    """A problem, or what the last hidden state is: `raw` or `normed`."""
    depth = len(stack.blocks)
    if len(own) != depth + 1:
        return f"{stack.path} has {depth} blocks, but hidden_states has {len(own)} entries", ""
    names = ["embed", *(f"layer.{i}" for i in range(depth - 1))]
    for number, name in enumerate(names):
        if not _equal(own[number], states[stack.name(name)]):
            return f"{stack.name(name)} differs from hidden_states[{number}]", ""
    if _equal(own[-1], states[stack.name(f"layer.{depth - 1}")]):
        return "", "raw"
    if stack.norm and _equal(own[-1], states[stack.name("norm")]):
        return "", "normed"
    return "hidden_states[-1] is neither the last block's output nor the final norm's", ""


def _get(output: Any, key: str) -> Any:
    return output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
