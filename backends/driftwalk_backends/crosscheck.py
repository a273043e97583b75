"""Points of a model, confirmed by the model itself: captures against its `hidden_states`.

In most models `hidden_states[i]` equals the capture before block i bit for bit, and the last one
either the raw output of the last block (ViT) or the state after the final norm (GPT-2, Llama).
Where the tuple means something else (one entry per stage, states in another order of axes), its
entries are found among the captures by their values. An entry that is none of them is noted: points
are what blocks gave, whatever a model calls its hidden states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from driftwalk.states import Point

from .first_run import FirstRun, States, Unsettled
from .functions import is_closed
from .hooks import capture
from .layout import Layout, Stack
from .model_outputs import (
    LOSS,
    Given,
    OutputPoints,
    find_outputs,
    given_by,
    is_of_transformers,
    may_have_been_asked,
    unasked,
)
from .points import find_stacks, stacks_by_hand
from .shared import watch_shared
from .tensors import get, is_float, same_values, tensors_in
from .watching import Made, Watched, hooked, watch

Run = Callable[..., Any]
UNCHECKED = "unchecked"
_MOST_WORDS = 8
"""Entries of a tuple that are named one by one."""


def find_layout(
    module: nn.Module,
    run: Run,
    blocks: str | None = None,
    like: Layout | None = None,
    outputs_alone: bool = False,
) -> Layout:
    """Find all points by watching a run of the model; `run(**extra)` calls it on the probe.

    `like` is the layout of a model that this one is compared with; `outputs_alone`: nothing else of
    that model is known. The model is run again only where one run does not tell all.
    """
    wants = _takes_hidden_states(module)
    asked = wants and _gives_them_apart(module)
    look = partial(watch, module, every=bool(blocks or like), by_hand=bool(blocks))
    watched = look(partial(run, output_hidden_states=True) if asked else run)
    if asked and not is_of_transformers(watched.output):
        wants = bool(_own_tuples(watched.output))  # else it will not give them again
        asked, watched = False, look(run)
    plain = watched.output
    if asked:
        plain = unasked(plain, run() if may_have_been_asked(plain) else None)
    watched.visits.outputs = [tensor for _, tensor in tensors_in(plain) if is_float(tensor)]
    stacks: tuple[Stack, ...] = ()
    notes: tuple[str, ...] = ()
    if outputs_alone:
        pass
    elif blocks:
        stacks = stacks_by_hand(module, [part.strip() for part in blocks.split(",")], watched)
    else:
        stacks, notes = find_stacks(watched, like.stacks if like is not None else ())
    given = given_by(plain)
    skipped = (*(name for name in given.tensors if name == LOSS), *given.skipped)
    found: Found | None = None
    if asked or not wants:
        with suppress(Unsettled):
            found = _in_first_run(stacks, watched, given, asked)
    if found is None:
        found = _in_another_run(module, run, stacks, wants, given)
    stacks, outputs, confirmed, contradictions = found
    if like is not None and is_closed(module):
        outputs = outputs.named_like(like.outputs)
    return Layout(stacks, replace(outputs, skipped=skipped), confirmed, (*notes, *contradictions))


Found = tuple[tuple[Stack, ...], OutputPoints, str, tuple[str, ...]]
"""Stacks with what their blocks share, the outputs that are points, what the model's own tuples
say, and notes on that."""


def _in_first_run(stacks: Sequence[Stack], watched: Watched, plain: Given, asked: bool) -> Found:
    """What the run tells in which the stacks were found."""
    seen = FirstRun(stacks, watched)
    stacks = tuple(map(seen.with_shared, stacks))
    outputs = find_outputs(plain.tensors, watched.output, seen.states, watched.made.maker)
    fresh = {name for name, _ in outputs.makers}
    seen.must_not_be_lost(tensor for name, tensor in plain.tensors.items() if name in fresh)
    if not asked:
        return stacks, outputs, UNCHECKED, ()
    entries = [entry for entries in _own_tuples(watched.output).values() for entry in entries]
    seen.must_not_be_lost(entries, any_order=True)
    return stacks, outputs, *_confirm(stacks, seen.states, watched.output, seen.unhooked)


def _in_another_run(
    module: nn.Module, run: Run, stacks: Sequence[Stack], wants: bool, plain: Given
) -> Found:
    """The same, of a run in which all states are copied."""
    states: States = {}
    unhooked: States = {}
    made = Made()
    hooked_before = any(part._forward_hooks for part in module.modules())

    def keep(kept: States, point: Point, tensor: torch.Tensor) -> None:
        kept[point.name] = tensor.clone()

    with ExitStack() as watched:
        layout = Layout(tuple(stacks))
        finish = watched.enter_context(capture(module, layout, partial(keep, states)))
        watched.enter_context(hooked(made.hooks(module)))
        # Transformers records hidden_states with a hook, which may be older than the user's own.
        if hooked_before:
            watched.enter_context(capture(module, layout, partial(keep, unhooked), first=True))
        arguments = {
            stack.prefix: watched.enter_context(watch_shared(module, stack.numbers, stack.takes))
            for stack in stacks
            if not stack.walked
        }
        output = run(output_hidden_states=True) if wants else run()
        finish(())  # which outputs are points is what we are about to find out
    stacks = tuple(
        stack
        if stack.walked
        else replace(stack, shared=arguments[stack.prefix].shared(states.values()))
        for stack in stacks
    )
    outputs = find_outputs(plain.tensors, output, states, made.maker)
    said = _confirm(stacks, states, output, unhooked) if wants else (UNCHECKED, ())
    return stacks, outputs, *said


def _takes_hidden_states(module: nn.Module) -> bool:
    """Transformers models take the flag; a plain module is asked nothing it does not know."""
    if not hasattr(module, "config"):
        return False
    parameters = inspect.signature(module.forward).parameters.values()
    return any(p.name == "output_hidden_states" or p.kind is p.VAR_KEYWORD for p in parameters)


def _gives_them_apart(module: nn.Module) -> bool:
    """Whether its output is known to be the same without the flag, less what was asked for.

    So it is for models of transformers, unless their config has them give their states anyway.
    """
    if not any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__):
        return False
    return not any(
        getattr(config, "output_hidden_states", False)
        for part in module.modules()
        if (config := getattr(part, "config", None)) is not None
    )


def _confirm(
    stacks: Sequence[Stack], states: States, output: Any, unhooked: States
) -> tuple[str, tuple[str, ...]]:
    """What the model's tuples say of the captures, in words, and notes on what contradicts them."""
    words, notes, speaks_for = [], [], set()
    tuples = _own_tuples(output)
    for stack in stacks:
        key = f"{stack.prefix}_hidden_states"
        key = key if key in tuples else "hidden_states"
        if key in tuples and (last := _last_of(stack, states, tuples[key], unhooked)):
            words.append(f"{stack.name('hidden_states[-1]')} is {last}")
            speaks_for.add(key)
    by_size = _by_size((states, unhooked))
    for key in [key for key in tuples if key not in speaks_for]:
        named = [_named(entry, by_size) for entry in tuples[key]]
        places = [f"{key}[{i}] is {name}" for i, name in enumerate(named) if name]
        words += places[:_MOST_WORDS]
        if len(places) > _MOST_WORDS:
            words.append(f"{len(places) - _MOST_WORDS} more of {key} are states, too")
        if others := [str(i) for i, name in enumerate(named) if not name]:
            notes.append(_note(key, others, len(named)))
    return "; ".join(words) or ("not confirmed" if tuples else UNCHECKED), tuple(notes)


def _own_tuples(output: Any) -> dict[str, list[torch.Tensor]]:
    """The tuples of states that a model gave, where it gave some."""
    tuples = {
        key: [entry for entry in value if isinstance(entry, torch.Tensor)]
        for key in ("encoder_hidden_states", "decoder_hidden_states", "hidden_states")
        if isinstance(value := get(output, (key,)), tuple | list)
    }
    return {key: entries for key, entries in tuples.items() if entries}


def _last_of(
    stack: Stack, states: States, own: Sequence[torch.Tensor], unhooked: States
) -> str | None:
    """Where a tuple is the stack's states in order: what its last entry is, `raw` or `normed`."""
    depth = len(stack.blocks)
    if stack.walked or len(own) != depth + 1:
        return None

    def is_state(number: int, name: str) -> bool:
        """Bit for bit, except that NaN equals NaN, and that the model may cast a state for the
        next block: a model may overflow and still be understood."""
        captured = (tensors[name] for tensors in (states, unhooked) if name in tensors)
        return any(same_values(own[number], tensor) for tensor in captured)

    embed, *layers = (point.name for point in stack.points[: depth + 1])
    if not all(map(is_state, range(depth), [embed, *layers[:-1]])):
        return None
    if is_state(-1, layers[-1]):
        return "raw"
    return "normed" if stack.norm and is_state(-1, stack.points[-1].name) else None


def _by_size(captures: Sequence[States]) -> dict[int, list[_Capture]]:
    """All captures by their number of elements, with what tells most of them apart."""
    found: dict[int, list[_Capture]] = {}
    for states in captures:
        for name, state in states.items():
            found.setdefault(state.numel(), []).append(_Capture(name, state, _extremes(state)))
    return found


class _Capture(NamedTuple):
    name: str
    state: torch.Tensor
    extremes: tuple[float, float]
    """The least and the greatest number: equal in whatever order the axes are."""


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    if not tensor.numel():
        return 0.0, 0.0
    least, greatest = tensor.aminmax()
    return float(least), float(greatest)


def _named(entry: torch.Tensor, captures: Mapping[int, list[_Capture]]) -> str | None:
    """The point whose state an entry holds, with its axes in whatever order."""
    if not entry.is_floating_point():
        return None
    extremes = _extremes(entry)
    for name, state, of_state in captures.get(entry.numel(), ()):
        if of_state == extremes and _same_numbers(state, entry):
            return name
    return None


def _same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = a.flatten(), b.flatten()
    return same_values(*flat) or same_values(*(tensor.sort().values for tensor in flat))


def _note(key: str, others: Sequence[str], count: int) -> str:
    return (
        f"Of the {count} entries of the model's own {key}, {len(others)} are no state that was "
        f"captured ({', '.join(others[:6])}{', ...' if len(others) > 6 else ''}, counted from 0): "
        "points are what the blocks gave. If other modules are the model's layers, name them: "
        "blocks='path.to.stack' (--blocks)."
    )
