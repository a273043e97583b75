"""What a model is made of, seen by watching one run: which part works at which point.

Nothing here knows a model by name. Every module that is called belongs to the point that is being
computed at that moment; a parameter belongs to the points of the modules that hold it. A weight
that is used twice (a tied head, a block applied L times) belongs to all of its points, in order.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from driftwalk.states import Probe

from .calls import call, inputs_for, quietly
from .loaded import LoadedModel
from .points import Layout
from .tensors import output_tensors, stream_input

MASKS = ("attention_mask", "encoder_attention_mask")
ANGLES = "position_embeddings"
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


@dataclass(frozen=True)
class Matrix:
    """One call of a linear layer; `first` says whether it took what the block's first one took."""

    path: str
    inputs: int
    outputs: int
    inputs_first: bool
    """The weight is stored [inputs, outputs] (GPT-2's Conv1D), not the other way round."""
    first: bool


@dataclass(frozen=True)
class Table:
    """One embedding table and the rows that the probe looks up."""

    path: str
    rows: tuple[int, ...]
    counts: bool
    """Looked up with 0, 1, 2 ...: a table of positions."""


@dataclass(frozen=True)
class Handed:
    """What a block is handed beside the residual stream."""

    causal: bool = False
    padded: tuple[str, ...] = ()
    angles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Anatomy:
    """Where every part of a model works; points in order of execution."""

    layout: Layout
    points: tuple[str, ...]
    modules: Mapping[str, tuple[str, ...]]
    parameters: Mapping[str, tuple[str, ...]]
    blocks: Mapping[str, str]
    """Point -> block path, for the layers."""
    matrices: Mapping[str, tuple[Matrix, ...]]
    """Point -> its linear layers in order of call."""
    tables: tuple[Table, ...]
    handed: Mapping[str, Handed]
    embedded: tuple[int, ...]
    """Shape of the first embed state: positions and width."""
    heads: Mapping[str, int]
    """Point -> number of attention heads, where it is known."""


@dataclass
class _Seen:
    """What one run shows, as it is seen."""

    current: str
    modules: dict[str, list[str]] = field(default_factory=dict)
    matrices: dict[str, list[Matrix]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    handed: dict[str, Handed] = field(default_factory=dict)
    first_input: dict[str, torch.Tensor] = field(default_factory=dict)
    embedded: tuple[int, ...] = ()


class _Clock:
    """Knows which point is being computed, from the calls of blocks and final norms."""

    def __init__(self, layout: Layout, seen: _Seen) -> None:
        self._seen = seen
        self._calls = [0] * len(layout.stacks)
        self._stacks = layout.stacks
        last = layout.points[-1].name
        starts = [stack.points[0].name for stack in layout.stacks]
        self._after = [*starts[1:], last]
        seen.current = starts[0]

    def before(self, path: str) -> str | None:
        """Move on to the layer or norm that is called now; None where it is neither."""
        for number, stack in enumerate(self._stacks):
            done = self._calls[number]
            if done < len(stack.blocks) and path == stack.blocks[done]:
                self._seen.current = stack.points[1 + done].name
                return self._seen.current
            if done == len(stack.blocks) and path == stack.norm:
                self._seen.current = stack.points[-1].name
                return None
        return None

    def after(self, path: str) -> None:
        for number, stack in enumerate(self._stacks):
            done = self._calls[number]
            if done < len(stack.blocks) and path == stack.blocks[done]:
                self._calls[number] += 1
                # What runs between two blocks is part of what makes the next state.
                more = done + 1 < len(stack.blocks)
                self._seen.current = stack.points[2 + done].name if more else self._after[number]
            elif done == len(stack.blocks) and path == stack.norm:
                self._seen.current = self._after[number]


def examine(model: LoadedModel, probe: Probe, layout: Layout) -> Anatomy:
    """Watch one run of the float64 model, whose attention masks are all written out."""
    eager = "eager" if hasattr(model.module, "set_attn_implementation") else None
    module = model.at("fp64", "cpu", eager)
    seen = _Seen("")
    clock = _Clock(layout, seen)
    handles = []
    for path, part in module.named_modules():
        before, after = _watchers(path, seen, clock)
        handles.append(part.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(part.register_forward_hook(after, with_kwargs=True))
    try:
        with quietly(module):
            call(module, inputs_for(module, probe, torch.device("cpu")))
    finally:
        for handle in handles:
            handle.remove()
    points = tuple(point.name for point in layout.points)
    blocks = {
        point.name: path
        for stack in layout.stacks
        for point, path in zip(stack.points[1:], stack.blocks, strict=False)
    }
    modules = {path: _ordered(names, points) for path, names in seen.modules.items()}
    return Anatomy(
        layout=layout,
        points=points,
        modules=modules,
        parameters=_parameters(module, modules, points),
        blocks=blocks,
        matrices={point: tuple(found) for point, found in seen.matrices.items()},
        tables=tuple(seen.tables.values()),
        handed=seen.handed,
        embedded=seen.embedded,
        heads={
            point: found for point, path in blocks.items() if (found := _count_heads(module, path))
        },
    )


def _watchers(
    path: str, seen: _Seen, clock: _Clock
) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(part: nn.Module, args: Any, kwargs: Any) -> None:
        layer = clock.before(path)
        if layer is not None:
            seen.handed[layer] = _handed(part, args, kwargs)
            taken = stream_input(args, kwargs)
            if taken is not None and not seen.embedded:
                seen.embedded = tuple(taken.shape[1:])
        used = seen.modules.setdefault(path, [])
        if seen.current not in used:
            used.append(seen.current)

    def after(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(part, nn.Embedding):
            if type(part).forward is nn.Embedding.forward:  # else its ids may be no row numbers
                _see_table(path, args, seen)
        else:
            _see_matrix(path, part, args, output, seen)
        clock.after(path)

    return before, after


def _see_table(path: str, args: Any, seen: _Seen) -> None:
    ids = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if ids is None or ids.is_floating_point() or not ids.numel():
        return
    row = ids.reshape(-1, ids.shape[-1])[0]
    counts = len(row) > 2 and bool((row[1:] - row[:-1] == 1).all())
    rows = set(ids.flatten().tolist())
    if path in seen.tables:
        rows |= set(seen.tables[path].rows)
    seen.tables[path] = Table(path, tuple(sorted(rows)), counts)


def _see_matrix(path: str, part: nn.Module, args: Any, output: Any, seen: _Seen) -> None:
    weight = part._parameters.get("weight")
    taken, given = stream_input(args, {}), output_tensors(output)
    if weight is None or weight.ndim != 2 or taken is None or not given:
        return
    shape = (given[0].shape[-1], taken.shape[-1])
    inputs_first = tuple(weight.shape) == shape[::-1] and not isinstance(part, nn.Linear)
    if tuple(weight.shape) != shape and not inputs_first:
        return
    calls = seen.matrices.setdefault(seen.current, [])
    if any(known.path == path for known in calls):
        return
    first = seen.first_input.setdefault(seen.current, taken)
    same = first is taken or (first.data_ptr() == taken.data_ptr() and first.shape == taken.shape)
    calls.append(Matrix(path, shape[1], shape[0], inputs_first, same))


def _handed(block: nn.Module, args: Any, kwargs: Any) -> Handed:
    masks = {name: argument(block, args, kwargs, name) for name in MASKS}
    padded = tuple(
        name
        for name, mask in masks.items()
        if isinstance(mask, torch.Tensor) and len(mask) > 1 and not torch.equal(mask[:1], mask[1:2])
    )
    angles = tuple(
        name
        for name, value in kwargs.items()
        if name.startswith(ANGLES) and isinstance(value, tuple | list)
    )
    return Handed(_is_causal(masks["attention_mask"]), padded, angles)


def _is_causal(mask: Any) -> bool:
    """Whether no query may look ahead, and each but the first may look back."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 4 or mask.shape[-1] != mask.shape[-2]:
        return False
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    open_row = seen[0, 0]
    return bool(open_row[-1].any()) and not bool(torch.triu(open_row, 1).any())


def argument(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """An argument of a block's call by its name, however it was handed over."""
    if name in kwargs:
        return kwargs[name]
    place = _position(block, name)
    return args[place] if place is not None and place < len(args) else None


def with_argument(
    block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another value for one argument."""
    place = _position(block, name)
    if name not in kwargs and place is not None and place < len(args):
        return (*args[:place], value, *args[place + 1 :]), dict(kwargs)
    return args, {**kwargs, name: value}


def _position(block: nn.Module, name: str) -> int | None:
    names = list(inspect.signature(block.forward).parameters)
    return names.index(name) if name in names else None


def _parameters(
    module: nn.Module, modules: Mapping[str, tuple[str, ...]], points: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Points of every float parameter, under its first name; tied ones add up."""
    names: dict[int, str] = {}
    used: dict[str, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        # A part that is never called itself is used by the one that holds it.
        while owner and owner not in modules:
            owner = owner.rpartition(".")[0]
        first = names.setdefault(id(parameter), name)
        used.setdefault(first, []).extend(modules.get(owner, ()))
    return {name: _ordered(found, points) for name, found in used.items()}


def _ordered(found: list[str], points: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(point for point in points if point in found)


def _count_heads(module: nn.Module, path: str) -> int:
    """Number of attention heads of a block: what its parts say, else the config."""
    for part in (*module.get_submodule(path).modules(), getattr(module, "config", None)):
        for name in _HEADS:
            found = getattr(part, name, None)
            if isinstance(found, int) and found > 1:
                return found
    return 0
