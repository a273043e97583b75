"""What a model is made of, seen by watching one run: which part works at which point.

Nothing here knows a model by name. Every module that is called belongs to the point that is being
computed at that moment; a parameter belongs to the points of the modules that hold it. A weight
that is used twice (a tied head, a block applied L times) belongs to all of its points, in order.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from driftwalk.states import Point, Probe

from .calls import call, inputs_for, quietly
from .eager_run import watched
from .layout import Layout
from .loaded import LoadedModel
from .tensors import output_tensors, stream_input
from .watching import hooked

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


class _Seen:
    """What one run shows, as it is seen."""

    def __init__(self, layout: Layout) -> None:
        states = [point.name for stack in layout.stacks for point in stack.points]
        states += [layout.points[-1].name] if layout.points else []
        self._next = dict(pairwise(states))
        self._current = states[0] if states else ""
        """The point that is being computed; what runs between two blocks makes the next state."""
        self.blocks = {p.name: p.module for stack in layout.stacks for p in stack.layers}
        self.modules: dict[str, set[str]] = defaultdict(set)
        self.matrices: dict[str, dict[str, Matrix]] = defaultdict(dict)
        self.tables: dict[str, Table] = {}
        self.handed: dict[str, Handed] = {}
        self.embedded: tuple[int, ...] = ()
        self._first_input: dict[str, torch.Tensor] = {}

    def meet(self, point: Point, tensor: torch.Tensor) -> None:
        self._current = self._next.get(point.name, self._current)

    def before(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.modules[path].add(self._current)
        if self.blocks.get(self._current) == path:
            self.handed[self._current] = _handed(part, args, kwargs)
            taken = stream_input(args, kwargs)
            if taken is not None and not self.embedded:
                self.embedded = tuple(taken.shape[1:])

    def after(self, path: str, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not isinstance(part, nn.Embedding):
            self._see_matrix(path, part, args, output)
        elif type(part).forward is nn.Embedding.forward:  # else its ids may be no row numbers
            self._see_table(path, args)

    def _see_table(self, path: str, args: Any) -> None:
        ids = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if ids is None or ids.is_floating_point() or not ids.numel():
            return
        row = ids.reshape(-1, ids.shape[-1])[0]
        counts = len(row) > 2 and bool((row[1:] - row[:-1] == 1).all())
        rows = set(ids.flatten().tolist())
        if path in self.tables:
            rows |= set(self.tables[path].rows)
        self.tables[path] = Table(path, tuple(sorted(rows)), counts)

    def _see_matrix(self, path: str, part: nn.Module, args: Any, output: Any) -> None:
        weight = part._parameters.get("weight")
        taken, given = stream_input(args, {}), output_tensors(output)
        if weight is None or weight.ndim != 2 or taken is None or not given:
            return
        shape = (given[0].shape[-1], taken.shape[-1])
        inputs_first = tuple(weight.shape) == shape[::-1] and not isinstance(part, nn.Linear)
        calls = self.matrices[self._current]
        if (tuple(weight.shape) != shape and not inputs_first) or path in calls:
            return
        first = self._first_input.setdefault(self._current, taken)
        same = (first.data_ptr(), first.shape) == (taken.data_ptr(), taken.shape)
        calls[path] = Matrix(path, shape[1], shape[0], inputs_first, same)


def examine(model: LoadedModel, probe: Probe, layout: Layout) -> Anatomy:
    """Watch one run of the float64 model, whose attention masks are all written out."""
    eager = "eager" if hasattr(model.module, "set_attn_implementation") else None
    module = model.at("fp64", "cpu", eager)
    seen = _Seen(layout)

    def run() -> Any:
        hooks = [
            (part, partial(seen.before, path), partial(seen.after, path))
            for path, part in module.named_modules()
        ]
        with hooked(hooks, first=True):
            return call(module, inputs_for(module, probe, torch.device("cpu")))

    with quietly(module):
        watched(module, layout, seen.meet, run)
    points = tuple(point.name for point in layout.points)
    modules = {path: _ordered(names, points) for path, names in seen.modules.items()}
    heads = {point: _count_heads(module, path) for point, path in seen.blocks.items()}
    return Anatomy(
        layout=layout,
        points=points,
        modules=modules,
        parameters=_parameters(module, modules, points),
        blocks=seen.blocks,
        matrices={point: tuple(calls.values()) for point, calls in seen.matrices.items()},
        tables=tuple(seen.tables.values()),
        handed=seen.handed,
        embedded=seen.embedded,
        heads={point: count for point, count in heads.items() if count},
    )


def _handed(block: nn.Module, args: Any, kwargs: Any) -> Handed:
    masks = {name: argument(block, args, kwargs, name) for name in MASKS}
    tensors = {name: mask for name, mask in masks.items() if isinstance(mask, torch.Tensor)}
    padded = [n for n, m in tensors.items() if len(m) > 1 and not torch.equal(m[:1], m[1:2])]
    angles = [n for n, v in kwargs.items() if n.startswith(ANGLES) and isinstance(v, tuple | list)]
    return Handed(_is_causal(masks["attention_mask"]), tuple(padded), tuple(angles))


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
    used: dict[str, set[str]] = defaultdict(set)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.is_floating_point():
            continue
        owner = name.rpartition(".")[0]
        # A part that is never called itself is used by the one that holds it.
        while owner and owner not in modules:
            owner = owner.rpartition(".")[0]
        first = names.setdefault(id(parameter), name)
        used[first].update(modules.get(owner, ()))
    return {name: _ordered(of_one, points) for name, of_one in used.items()}


def _ordered(names: set[str], points: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(point for point in points if point in names)


def _count_heads(module: nn.Module, path: str) -> int:
    """Number of attention heads of a block: what its parts say, else the config."""
    for part in (*module.get_submodule(path).modules(), getattr(module, "config", None)):
        for name in _HEADS:
            count = getattr(part, name, None)
            if isinstance(count, int) and count > 1:
                return count
    return 0
