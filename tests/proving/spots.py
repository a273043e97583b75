"""Where a fault may sit, whether a probe shows it, and what a call gives: used by the faults."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from math import isnan
from typing import Any

import torch
from torch import nn

from .case import GRAPHS, HALVES, MANY, WHOLE, Done, NoPlace, Site
from .places import (
    HEADS,
    attentions,
    blocks,
    copied,
    in_blocks,
    inputs_first,
    is_product,
    run,
    wrap,
)

UNROUNDED = (*WHOLE, *HALVES, *GRAPHS, *MANY)
"""All but quantisation to eight bits, which costs more than such a fault does."""
LIVE = (*WHOLE, *HALVES, "generate", "compare", "set", "module")
"""Runs of Python code: what depends on chance, or on an earlier call, has no graph."""
TRIES, LEAST = 4, 1e-6
Apply = Callable[[Site], Done]


def shown(apply: Apply) -> Apply:
    """Keep a family to places that change an output: it is tried on copies until one does."""

    @wraps(apply)
    def tried(site: Site) -> Done:
        for _ in range(TRIES):
            done = apply(replace(site, module=copied(site.module)))
            reference = site.module if done.reference is None else done.reference
            assert isinstance(reference, nn.Module)
            assert isinstance(done.candidate, nn.Module)
            if difference(reference, done.candidate, site.inputs) > LEAST:
                return done
        raise NoPlace

    return tried


def difference(reference: nn.Module, candidate: nn.Module, inputs: Mapping[str, Any]) -> float:
    """Largest relative distance of an output in float64, over two calls of the candidate."""
    right, wrong = wide(reference), wide(candidate)
    expected = floats(run(right, inputs, torch.float64))
    results = [floats(run(wrong, inputs, torch.float64)) for _ in range(2)]
    return max(distance(expected, result) for result in results)


def wide(module: nn.Module) -> nn.Module:
    """A copy in float64; experts one by one, since no grouped product takes float64."""
    made = copied(module).double()
    for part in made.modules():
        config = getattr(part, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"  # type: ignore[union-attr]
    return made


def distance(right: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    if [one.shape for one in right] != [one.shape for one in other]:
        return float("inf")
    sizes = [
        float((b - a).norm() / a.norm().clamp(min=1e-30))
        for a, b in zip(right, other, strict=True)
        if not torch.equal(a, b)
    ]
    return max((float("inf") if isnan(size) else size for size in sizes), default=0.0)


def floats(output: Any) -> list[torch.Tensor]:
    """All float tensors in what a model gives, those of its caches too."""
    if isinstance(output, torch.Tensor):
        return [output.double()] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple):
        return [one for value in output for one in floats(value)]
    layers = [part for cache in caches_of(output) for part in cache.layers]
    return floats([getattr(layer, n, None) for layer in layers for n in ("keys", "values")])


def caches_of(output: Any) -> list[Any]:
    """Caches of keys and values, as transformers has them: one, or one for each attention."""
    parts = [getattr(output, f"{n}_attention_cache", None) for n in ("self", "cross")]
    return [one for one in (output, *parts) if isinstance(getattr(one, "layers", None), list)]


# ---- what is called ----


@dataclass
class Call:
    """First call of a module in a run, and how many there were."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    count: int = 1

    @property
    def input(self) -> Any:
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    @property
    def main(self) -> torch.Tensor:
        return first_of(self.output)


def calls(site: Site) -> dict[str, Call]:
    """Calls of the modules of a site, in the order in which they end."""
    made: dict[str, Call] = {}

    def note(path: str, args: Any, kwargs: Any, output: Any) -> None:
        if path in made:
            made[path].count += 1
        else:
            made[path] = Call(args, dict(kwargs), output)

    handles = [
        part.register_forward_hook(
            lambda _, args, kwargs, output, path=path: note(path, args, kwargs, output),
            with_kwargs=True,
        )
        for path, part in site.module.named_modules()
        if path
    ]
    try:
        run(site.module, site.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return made


def used(site: Site, kinds: Callable[[nn.Module], bool]) -> list[str]:
    """Called modules of a kind, those in repeated blocks where there are any."""
    wanted = [path for path in calls(site) if kinds(site.module.get_submodule(path))]
    return in_blocks(site.module, wanted)


def first_of(output: Any) -> torch.Tensor:
    """The tensor that comes first in an output."""
    while not isinstance(output, torch.Tensor):
        values = list(output.values()) if isinstance(output, Mapping) else output
        if not isinstance(values, list | tuple) or not values:
            raise NoPlace
        output = values[0]
    return output


def with_first(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An output whose first tensor went through a change."""
    if isinstance(output, torch.Tensor):
        return change(output)
    if isinstance(output, tuple):
        return (with_first(output[0], change), *output[1:])
    name = next(iter(output))
    output[name] = with_first(output[name], change)
    return output


def place_of(part: nn.Module, names: tuple[str, ...]) -> tuple[str, int] | None:
    """Name and position of an argument that a module's forward takes under one of some names."""
    taken = list(inspect.signature(part.forward).parameters)
    return next(((name, taken.index(name)) for name in names if name in taken), None)


def argument(at: tuple[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    name, index = at
    return args[index] if index < len(args) else kwargs.get(name)


def with_argument(at: tuple[str, int], args: Any, kwargs: Any, value: Any) -> tuple[Any, Any]:
    name, index = at
    if index < len(args):
        return (*args[:index], value, *args[index + 1 :]), kwargs
    return args, {**kwargs, name: value}


# ---- what holds weights ----


def out_view(part: nn.Module) -> torch.Tensor:
    """A product's weight as [outputs, inputs], to be written into."""
    weight: torch.Tensor = part.weight.data  # type: ignore[union-attr,assignment]
    return weight.T if inputs_first(part) else weight


def owner(name: str) -> str:
    """Path of the module that holds a parameter."""
    return name.rpartition(".")[0]


def matrices(site: Site) -> list[str]:
    """Names of weights of two axes or more that one called module has; tables are none."""
    held: dict[int, int] = {}
    for _, parameter in site.module.named_parameters(remove_duplicate=False):
        held[id(parameter)] = held.get(id(parameter), 0) + 1
    names = []
    for path in calls(site):
        part = site.module.get_submodule(path)
        if not isinstance(part, nn.Embedding):
            own = part.named_parameters(recurse=False)
            names += [f"{path}.{n}" for n, p in own if p.ndim > 1 and held[id(p)] == 1]
    return in_blocks(site.module, names)


def like_blocks(module: nn.Module) -> list[tuple[str, str]]:
    """Two blocks of one list whose parameters have the same names and shapes."""
    shapes = {
        path: [(n, p.shape) for n, p in module.get_submodule(path).named_parameters()]
        for path in blocks(module)
    }
    paths = list(shapes)
    return [
        (a, b)
        for index, a in enumerate(paths)
        for b in paths[index + 1 :]
        if owner(a) == owner(b) and shapes[a] == shapes[b] and shapes[a]
    ]


@dataclass(frozen=True)
class Rows:
    """Those rows of a product that make queries, keys or values: views that can be written."""

    owner: str
    weight: torch.Tensor
    bias: torch.Tensor | None

    def take(self, order: torch.Tensor) -> None:
        """Put the rows in another order."""
        for one in self.all:
            one.copy_(one[order].clone())

    @property
    def all(self) -> list[torch.Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]


@dataclass(frozen=True)
class Heads:
    """The products of an attention, its own three or one for all."""

    path: str
    q: Rows
    k: Rows
    v: Rows
    heads: int
    size: int

    @property
    def stored(self) -> int:
        """Number of heads of keys and of values."""
        return self.k.weight.shape[0] // self.size


_FUSED = re.compile(r"^(c_attn|qkv|Wqkv|qkv_proj|in_proj)$")


def heads_of(module: nn.Module) -> list[Heads]:
    """Every attention whose rows of queries, keys and values are known."""
    made = []
    for one in attentions(module):
        rows = [_rows(module, path) for path in (one.q, one.k, one.v)]
        made.append(Heads(one.path, *rows, one.heads, one.size))
    for path, part in module.named_modules():
        count = next((v for n in HEADS if isinstance(v := getattr(part, n, None), int)), 0)
        if not count:
            continue
        if isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            bias = None if part.in_proj_bias is None else part.in_proj_bias.data
            made.append(_thirds(path, path, part.in_proj_weight.data, bias, count))
        for name, child in part.named_children():
            if _FUSED.match(name) and is_product(child):
                whole = _rows(module, f"{path}.{name}".lstrip("."))
                if whole.weight.shape[0] == 3 * whole.weight.shape[1]:
                    made.append(_thirds(path, whole.owner, whole.weight, whole.bias, count))
    return made


def _rows(module: nn.Module, path: str) -> Rows:
    part = module.get_submodule(path)
    bias = getattr(part, "bias", None)
    return Rows(path, out_view(part), None if bias is None else bias.data)


def _thirds(
    path: str, holder: str, weight: torch.Tensor, bias: torch.Tensor | None, heads: int
) -> Heads:
    parts = weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    trio = [Rows(holder, w, b) for w, b in zip(parts, biases, strict=True)]
    return Heads(path, *trio, heads, parts[0].shape[0] // heads)


def used_heads(site: Site) -> list[Heads]:
    """Those of attentions that are called."""
    called = calls(site)
    return [one for one in heads_of(site.module) if one.path in called]


def generator(site: Site) -> torch.Generator:
    return torch.Generator().manual_seed(site.rng.randrange(2**31))


def rms(values: torch.Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


def wrapped(site: Site, path: str, around: Callable[..., Any], says: str) -> Done:
    """One module with something else around its forward, or in its place."""
    wrap(site.module.get_submodule(path), around)
    return Done(site.module, f"{path} {says}", (path,))
