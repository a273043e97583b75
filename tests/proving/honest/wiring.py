"""What a rewrite needs to know of a module: who reads what, where heads lie, and if it is equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..case import Done, NoPlace, Site
from ..judging import SAME
from ..places import (
    K,
    Q,
    V,
    _heads,
    attentions,
    called,
    columns,
    copied,
    epsilon,
    inputs_first,
    is_product,
    norms,
    rows,
    run,
    wrap,
)
from ..spots import distance, floats, wide

TRIES = 6
"""Places that are tried before a model counts as one that has none."""
MISFITS = (NoPlace, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError)


def drawn(
    site: Site, places: Iterable[Any], change: Callable[[nn.Module, Any], str], tries: int = TRIES
) -> Done:
    """The first place, in an order that chance draws, where a rewrite keeps the function.

    A rewrite assumes things of a model that its structure does not show: who else reads a norm, how
    a fused product is laid out. Float64 decides: where outputs change, the place is none.
    """
    order = list(places)
    site.rng.shuffle(order)
    right = _wide(site.module, site) if order else []
    for place in order[:tries]:
        candidate = copied(site.module)
        try:
            with torch.no_grad():
                what = change(candidate, place)
            if not changed(site.module, candidate):
                continue
            if distance(right, _wide(candidate, site)) < SAME / 2:
                return Done(candidate, what)
        except MISFITS:
            continue
    raise NoPlace


def _wide(module: nn.Module, site: Site) -> list[torch.Tensor]:
    with written_out():
        return floats(run(wide(module), site.inputs, torch.float64))


@contextmanager
def written_out() -> Iterator[None]:
    """Encoder layers of PyTorch call their parts, as they do where something hooks them."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def changed(before: nn.Module, after: nn.Module) -> bool:
    """Whether a number, its place or what is computed is another."""
    both = (before, after)
    names = [[(path, type(part)) for path, part in one.named_modules()] for one in both]
    if len(list(before.parameters())) != len(list(after.parameters())):  # one was shared
        return True
    stored = [one.state_dict(keep_vars=True) for one in both]
    if names[0] != names[1] or stored[0].keys() != stored[1].keys():
        return True
    pairs = [(value, stored[1][key]) for key, value in stored[0].items()]
    return any(a.stride() != b.stride() or not torch.equal(a, b) for a, b in pairs)


def matrix(part: nn.Module) -> torch.Tensor:
    """The weight of a product as [outputs, inputs]; writing to it writes to the weight."""
    if isinstance(part, nn.MultiheadAttention):
        return part.in_proj_weight.data
    weight: torch.Tensor = part.weight.data  # type: ignore[assignment, union-attr]
    return weight.T if inputs_first(part) else weight


def bias(part: nn.Module) -> torch.Tensor | None:
    """The bias of a product, to be written to."""
    name = "in_proj_bias" if isinstance(part, nn.MultiheadAttention) else "bias"
    stored = getattr(part, name, None)
    return None if stored is None else stored.data


def add_bias(part: nn.Module, more: torch.Tensor) -> None:
    """Add to a product's bias; one is made where there is none."""
    stored = bias(part)
    if stored is None:
        part.bias = nn.Parameter(more.to(matrix(part).dtype))
    else:
        stored.copy_(stored.double() + more)


def scaled(target: torch.Tensor | None, factor: torch.Tensor | float) -> None:
    """Multiply in float64, round once."""
    if target is not None:
        target.copy_(target.double() * factor)


def alone(module: nn.Module, paths: Iterable[str]) -> list[str]:
    """Those of some modules whose parameters nothing else has."""
    counts = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    modules = Counter(id(part) for _, part in module.named_modules(remove_duplicate=False))
    return [
        path
        for path in paths
        if modules[id(part := module.get_submodule(path))] == 1
        and all(counts[id(p)] == 1 for p in part.parameters(recurse=False))
    ]


def own_products(module: nn.Module) -> list[str]:
    return alone(module, [path for path, part in module.named_modules() if is_product(part)])


def plain_norms(module: nn.Module) -> list[str]:
    """Norms over the last axis that have a gain."""
    other = (nn.modules.batchnorm._NormBase, nn.GroupNorm)
    paths = [p for p in norms(module) if not isinstance(module.get_submodule(p), other)]
    return [p for p in paths if getattr(module.get_submodule(p), "weight", None) is not None]


@dataclass(frozen=True)
class Call:
    """One call of a module, with the first tensor that it was given and the one that it gave."""

    path: str
    taken: torch.Tensor
    made: torch.Tensor


def calls(site: Site) -> list[Call]:
    """Calls of modules that take a tensor and give one, in order of their ends."""
    made: list[Call] = []

    def note(path: str, taken: Any, output: Any) -> None:
        if taken and isinstance(taken[0], torch.Tensor) and isinstance(output, torch.Tensor):
            made.append(Call(path, taken[0], output))

    handles = [
        part.register_forward_hook(lambda _, taken, output, path=path: note(path, taken, output))
        for path, part in site.module.named_modules()
        if path
    ]
    try:
        run(site.module, site.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return made


def readers(site: Site) -> list[tuple[str, tuple[str, ...]]]:
    """Norms that have a gain, each with the products that read its output and share no weight."""
    own, made = set(own_products(site.module)), calls(site)
    pairs = []
    for norm in alone(site.module, plain_norms(site.module)):
        outputs = [call.made for call in made if call.path == norm]
        read = [call.path for call in made if any(_one(call.taken, one) for one in outputs)]
        products = tuple(path for path in dict.fromkeys(read) if path in own)
        if products:
            pairs.append((norm, products))
    return pairs


def _one(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one; all of a run are kept, so that no memory is used twice."""
    return first.data_ptr() == second.data_ptr() and first.shape == second.shape


def gain(norm: nn.Module) -> tuple[torch.Tensor, float]:
    """What a norm multiplies by, in float64, and what is stored for a gain of one."""
    empty = copied(norm)
    weight: torch.Tensor = empty.weight  # type: ignore[assignment]
    weight.data.zero_()
    if bias(empty) is not None:
        bias(empty).zero_()  # type: ignore[union-attr]
    with torch.no_grad():
        rest = empty(torch.linspace(-1, 2, weight.numel())[None].to(weight.dtype))
    base = 0.0 if rest.abs().max() == 0 else 1.0
    return norm.weight.data.double() + base, 1.0 - base  # type: ignore[operator, union-attr]


@dataclass(frozen=True)
class Rows:
    """Outputs of a product that make queries, keys or values: [heads, size]."""

    path: str
    index: torch.Tensor

    @property
    def flat(self) -> torch.Tensor:
        return self.index.flatten()


@dataclass(frozen=True)
class Heads:
    """An attention whose heads can be told apart in its weights."""

    path: str
    q: Rows
    k: Rows
    v: Rows
    out: str
    """The product that reads the heads, one after the other."""

    @property
    def size(self) -> int:
        return self.q.index.shape[1]

    @property
    def groups(self) -> int:
        """Queries of one key."""
        return len(self.q.index) // len(self.k.index)

    def read(self, head: int) -> torch.Tensor:
        """Inputs of the output product that come from one head."""
        return torch.arange(head * self.size, (head + 1) * self.size)


FUSED = re.compile(r"^(c_attn|qkv|qkv_proj|query_key_value|in_proj|Wqkv|attn)$")


def heads(module: nn.Module) -> list[Heads]:
    """Attentions by their products; a fused one is given in each of the usual layouts."""
    made = []
    for one in attentions(module):
        trio = [
            Rows(path, torch.arange(rows(module.get_submodule(path))).view(-1, one.size))
            for path in (one.q, one.k, one.v)
            if rows(module.get_submodule(path)) % one.size == 0
        ]
        if len(trio) == 3 and (out := _reader(module, one.path, one.heads * one.size)):
            made.append(Heads(one.path, *trio, out))
    for path, part in module.named_modules():
        fused = path.rpartition(".")
        if isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            split = _layouts(path, part.num_heads, part.embed_dim // part.num_heads, part)
            made += [Heads(path, *trio, f"{path}.out_proj") for trio in split[:1]]
        elif is_product(part) and FUSED.match(fused[2]):
            count = _heads(module, fused[0])
            size = getattr(module.get_submodule(fused[0]), "head_dim", 0)
            size = size or columns(part) // max(count, 1)
            if count and (out := _reader(module, fused[0], count * size)):
                made += [Heads(fused[0], *trio, out) for trio in _layouts(path, count, size, part)]
    return made


def _layouts(path: str, count: int, size: int, part: nn.Module) -> list[tuple[Rows, Rows, Rows]]:
    total, rest = divmod(matrix(part).shape[0], size)
    keys, odd = divmod(total - count, 2)
    if rest or odd or keys < 1 or count % keys:
        return []
    every = torch.arange(total * size).view(total, size)
    made = [every[:count], every[count : count + keys], every[count + keys :]]
    layouts = [made]
    if keys == count:
        layouts.append(list(every.view(count, 3, size).unbind(1)))
    return [tuple(Rows(path, one) for one in layout) for layout in layouts]  # type: ignore[misc]


def _reader(module: nn.Module, path: str, width: int) -> str:
    """The output product of an attention: in it, or beside it as BERT has it."""
    for home in (path, path.rpartition(".")[0]):
        part = module.get_submodule(home)
        for name, child in part.named_modules():
            last = name.rpartition(".")[2]
            known = any(one.match(last) for one in (Q, K, V, FUSED))
            if is_product(child) and not known and columns(child) == width:
                return f"{home}.{name}".lstrip(".")
    return ""


NORM_OF_HEADS = re.compile(r"^(q|k|query|key|qk)_?(layer_?)?(norm|ln)", re.I)


def has_norms(module: nn.Module, path: str) -> bool:
    """Whether an attention normalises its queries or keys."""
    inside = [(name, part) for name, part in module.get_submodule(path).named_modules() if name]
    last = [name.rpartition(".")[2] for name, part in inside if epsilon(part)]
    return any(NORM_OF_HEADS.match(name) for name in last)


def used(site: Site, paths: Iterable[str]) -> list[str]:
    """Those of some modules that a run calls."""
    ran = called(site.module, site.inputs)
    return [path for path in paths if path in ran]


def wrap_all(parts: Iterable[nn.Module], around: Callable[..., Any]) -> None:
    """Wrap several modules; those of one class stay of one class."""
    kinds: dict[type[nn.Module], type[nn.Module]] = {}
    for part in parts:
        base = type(part)
        if base in kinds:
            part.__class__ = kinds[base]
        else:
            wrap(part, around)
            kinds[base] = type(part)
