"""Honest families that rewrite stored numbers: other weights, the same function."""

from __future__ import annotations

import torch
from torch import nn

from ..case import HALVES, MANY, WHOLE, Done, Site, family
from ..places import Mlp, mlps
from .wiring import (
    Heads,
    Rows,
    add_bias,
    alone,
    bias,
    drawn,
    gain,
    has_norms,
    heads,
    matrix,
    readers,
    scaled,
)

STORED = (*WHOLE, *HALVES, "onnx", *(one for one in MANY if one != "module"))
"""All but `int8`, whose steps follow the weights, and `module`: states inside a block differ."""
REORDERED = (*STORED, "int8")
"""The same numbers in another order have the same steps."""


def order_of(site: Site, count: int) -> torch.Tensor:
    """A permutation that moves something."""
    order = list(range(count))
    site.rng.shuffle(order)
    if order == sorted(order):
        order = order[1:] + order[:1]
    return torch.tensor(order)


def factors(site: Site, count: int) -> torch.Tensor:
    """Positive factors around one."""
    return torch.tensor([2 ** site.rng.uniform(-1.5, 1.5) for _ in range(count)]).double()


def _own_mlps(module: nn.Module) -> list[Mlp]:
    return [one for one in mlps(module) if alone(module, one.up) and alone(module, [one.down])]


def _own_heads(module: nn.Module) -> list[Heads]:
    return [
        one for one in heads(module) if len(alone(module, {one.q.path, one.k.path, one.v.path}))
    ]


def _reordered(part: nn.Module, rows: torch.Tensor, order: torch.Tensor) -> None:
    """Outputs `rows` of a product are given those that `order` names."""
    weight, shift = matrix(part), bias(part)
    weight[rows] = weight[order].clone()
    if shift is not None:
        shift[rows] = shift[order].clone()


@family("rewrite", "honest", REORDERED)
def hidden_units_permuted(site: Site) -> Done:
    """Hidden units of one MLP in another order."""

    def change(module: nn.Module, place: Mlp) -> str:
        down = matrix(module.get_submodule(place.down))
        order = order_of(site, down.shape[1])
        for path in place.up:
            _reordered(module.get_submodule(path), torch.arange(len(order)), order)
        down.copy_(down[:, order].clone())
        return f"hidden units of {place.path or 'the model'} permuted"

    return drawn(site, _own_mlps(site.module), change)


@family("rewrite", "honest", REORDERED)
def heads_permuted(site: Site) -> Done:
    """Heads of one attention in another order; keys move with their queries."""

    def change(module: nn.Module, place: Heads) -> str:
        groups = order_of(site, len(place.k.index)) if len(place.k.index) > 1 else torch.zeros(1)
        groups = groups.long()
        inner = [order_of(site, place.groups) if place.groups > 1 else torch.zeros(1).long()]
        inner += [inner[0].flip(0) for _ in groups[1:]]
        pairs = zip(groups, inner, strict=True)
        queries = torch.cat([group * place.groups + one for group, one in pairs])
        for rows, order in ((place.q, queries), (place.k, groups), (place.v, groups)):
            part = module.get_submodule(rows.path)
            _reordered(part, rows.flat, rows.index[order].flatten())
        out = matrix(module.get_submodule(place.out))
        out.copy_(out[:, torch.cat([place.read(int(head)) for head in queries])].clone())
        return f"heads of {place.path} permuted"

    return drawn(site, [one for one in _own_heads(site.module) if len(one.q.index) > 1], change)


@family("rewrite", "honest", REORDERED)
def key_groups_kept_queries_permuted(site: Site) -> Done:
    """Queries that share a key in another order, within each group."""

    def change(module: nn.Module, place: Heads) -> str:
        orders = [
            order_of(site, place.groups) + n * place.groups for n in range(len(place.k.index))
        ]
        queries = torch.cat(orders)
        part = module.get_submodule(place.q.path)
        _reordered(part, place.q.flat, place.q.index[queries].flatten())
        out = matrix(module.get_submodule(place.out))
        out.copy_(out[:, torch.cat([place.read(int(head)) for head in queries])].clone())
        return f"queries of {place.path} permuted within their groups"

    return drawn(site, [one for one in _own_heads(site.module) if one.groups > 1], change)


@family("rewrite", "honest", REORDERED)
def value_units_permuted(site: Site) -> Done:
    """Values of each head in another order, up to the output product."""

    def change(module: nn.Module, place: Heads) -> str:
        out = matrix(module.get_submodule(place.out))
        for number, rows in enumerate(place.v.index):
            order = order_of(site, place.size)
            _reordered(module.get_submodule(place.v.path), rows, rows[order])
            for head in range(number * place.groups, (number + 1) * place.groups):
                out[:, place.read(head)] = out[:, place.read(head)[order]].clone()
        return f"values of {place.path} permuted within each head"

    return drawn(site, [one for one in _own_heads(site.module) if one.size > 1], change)


def _fold(module: nn.Module, norm: str, products: tuple[str, ...]) -> None:
    part = module.get_submodule(norm)
    size, one = gain(part)
    shift = bias(part)
    for path in products:
        product = module.get_submodule(path)
        weight = matrix(product)
        if shift is not None:
            add_bias(product, weight.double() @ shift.double())
        scaled(weight, size)
    part.weight.data.fill_(one)  # type: ignore[union-attr]
    if shift is not None:
        shift.zero_()


@family("rewrite", "honest", STORED)
def norm_gain_folded(site: Site) -> Done:
    """Gain and bias of one norm folded into the products that read it."""

    def change(module: nn.Module, place: tuple[str, tuple[str, ...]]) -> str:
        _fold(module, *place)
        return f"gain of {place[0]} folded into {', '.join(place[1])}"

    return drawn(site, readers(site), change)


@family("rewrite", "honest", STORED)
def norm_gains_folded_everywhere(site: Site) -> Done:
    """Gains and biases of all norms folded into the products that read them."""
    every = readers(site)

    def change(module: nn.Module, places: list[tuple[str, tuple[str, ...]]]) -> str:
        for place in places:
            _fold(module, *place)
        return f"gains of {len(places)} norms folded into the products after them"

    return drawn(site, [every] if len(every) > 1 else [], change)


def _norm_scaled(site: Site, factor: float) -> Done:
    def change(module: nn.Module, place: tuple[str, tuple[str, ...]]) -> str:
        norm, products = place
        part = module.get_submodule(norm)
        size, one = gain(part)
        part.weight.data.copy_(size * factor - (1 - one))  # type: ignore[union-attr]
        scaled(bias(part), factor)
        for path in products:
            scaled(matrix(module.get_submodule(path)), 1 / factor)
        return f"gain of {norm} times {factor:g}, {', '.join(products)} divided by it"

    return drawn(site, readers(site), change)


@family("rewrite", "honest", STORED)
def norm_scale_moved(site: Site) -> Done:
    """A factor that is no power of two moved between a norm and the products after it."""
    return _norm_scaled(site, site.rng.choice((0.3, 1.7, 3.1)))


@family("rewrite", "honest", STORED)
def norm_scale_moved_by_a_power_of_two(site: Site) -> Done:
    """A power of two moved between a norm and the products after it: exact in every format."""
    return _norm_scaled(site, site.rng.choice((0.25, 0.5, 2.0, 4.0)))


@family("rewrite", "honest", STORED)
def smooth_scales(site: Site) -> Done:
    """One factor per channel moved from a norm into the products after it, as SmoothQuant does."""

    def change(module: nn.Module, place: tuple[str, tuple[str, ...]]) -> str:
        norm, products = place
        part = module.get_submodule(norm)
        size, one = gain(part)
        factor = factors(site, len(size))
        part.weight.data.copy_(size / factor - (1 - one))  # type: ignore[union-attr]
        scaled(bias(part), 1 / factor)
        for path in products:
            scaled(matrix(module.get_submodule(path)), factor)
        return f"one factor per channel moved from {norm} into {', '.join(products)}"

    return drawn(site, readers(site), change)


def _values_scaled(site: Site, power: bool) -> Done:
    def change(module: nn.Module, place: Heads) -> str:
        part, out = module.get_submodule(place.v.path), matrix(module.get_submodule(place.out))
        for number, rows in enumerate(place.v.index):
            factor = 2.0 ** site.rng.choice((-2, -1, 1, 2)) if power else site.rng.uniform(1.3, 3.7)
            _rows_scaled(part, rows, factor)
            for head in range(number * place.groups, (number + 1) * place.groups):
                out[:, place.read(head)] = (out[:, place.read(head)].double() / factor).to(out)
        return f"values of {place.path} scaled per head, {place.out} the other way"

    return drawn(site, _own_heads(site.module), change)


def _rows_scaled(part: nn.Module, rows: torch.Tensor, factor: torch.Tensor | float) -> None:
    weight, shift = matrix(part), bias(part)
    column = factor[:, None] if isinstance(factor, torch.Tensor) else factor
    weight[rows] = (weight[rows].double() * column).to(weight)
    if shift is not None:
        shift[rows] = (shift[rows].double() * factor).to(shift)


@family("rewrite", "honest", STORED)
def value_scale_moved(site: Site) -> Done:
    """A factor per head moved between the values and the output product."""
    return _values_scaled(site, power=False)


@family("rewrite", "honest", STORED)
def value_scale_moved_by_a_power_of_two(site: Site) -> Done:
    """A power of two per head moved between the values and the output product."""
    return _values_scaled(site, power=True)


@family("rewrite", "honest", STORED)
def up_scale_moved(site: Site) -> Done:
    """A factor per hidden unit moved across a ReLU or a gate, from one product to the next."""

    def change(module: nn.Module, place: tuple[Mlp, str]) -> str:
        mlp, up = place
        down = matrix(module.get_submodule(mlp.down))
        factor = factors(site, down.shape[1])
        _rows_scaled(module.get_submodule(up), torch.arange(len(factor)), factor)
        scaled(down, 1 / factor)
        return f"hidden units of {up} scaled, {mlp.down} the other way"

    places = [(one, up) for one in _own_mlps(site.module) for up in one.up]
    return drawn(site, places, change)


@family("rewrite", "honest", REORDERED)
def keys_bias_left_out(site: Site) -> Done:
    """The bias of the keys set to zero: a softmax does not see it."""

    def change(module: nn.Module, place: Heads) -> str:
        shift = bias(module.get_submodule(place.k.path))
        assert shift is not None
        shift[place.k.flat] = 0
        return f"bias of the keys of {place.path} left out"

    return drawn(site, [one for one in _own_heads(site.module) if _biased(site, one.k)], change)


def _biased(site: Site, rows: Rows) -> bool:
    shift = bias(site.module.get_submodule(rows.path))
    return shift is not None and bool(shift[rows.flat].abs().max() > 1e-3)


@family("rewrite", "honest", REORDERED)
def values_bias_moved(site: Site) -> Done:
    """The bias of the values moved behind the output product: weights of a softmax sum to one."""

    def change(module: nn.Module, place: Heads) -> str:
        shift, out = bias(module.get_submodule(place.v.path)), module.get_submodule(place.out)
        assert shift is not None
        per_head = shift[place.v.index].repeat_interleave(place.groups, 0).flatten()
        add_bias(out, matrix(out).double() @ per_head.double())
        shift[place.v.flat] = 0
        return f"bias of the values of {place.path} moved into {place.out}"

    return drawn(site, [one for one in _own_heads(site.module) if _biased(site, one.v)], change)


def _free(site: Site) -> list[Heads]:
    """Attentions with nothing that normalises between the products and the scores."""
    return [one for one in _own_heads(site.module) if not has_norms(site.module, one.path)]


@family("rewrite", "honest", STORED)
def query_scale_moved(site: Site) -> Done:
    """A factor moved between the queries and the keys of each head."""

    def change(module: nn.Module, place: Heads) -> str:
        for number, rows in enumerate(place.k.index):
            factor = site.rng.uniform(1.2, 3)
            _rows_scaled(module.get_submodule(place.k.path), rows, 1 / factor)
            for head in range(number * place.groups, (number + 1) * place.groups):
                _rows_scaled(module.get_submodule(place.q.path), place.q.index[head], factor)
        return f"queries of {place.path} scaled per head, keys the other way"

    return drawn(site, _free(site), change)


def _turned(part: nn.Module, rows: torch.Tensor, turn: torch.Tensor) -> None:
    weight, shift = matrix(part), bias(part)
    weight[rows] = (turn @ weight[rows].double()).to(weight)
    if shift is not None:
        shift[rows] = (turn @ shift[rows].double()).to(shift)


def _queries_turned(site: Site, turns: list[torch.Tensor], what: str) -> Done:
    def change(module: nn.Module, place: Heads) -> str:
        for number, rows in enumerate(place.k.index):
            turn = turns[number % len(turns)]
            _turned(module.get_submodule(place.k.path), rows, turn)
            for head in range(number * place.groups, (number + 1) * place.groups):
                _turned(module.get_submodule(place.q.path), place.q.index[head], turn)
        return f"queries and keys of {place.path} {what}"

    return drawn(site, [one for one in _free(site) if one.size == len(turns[0])], change)


@family("rewrite", "honest", STORED)
def queries_and_keys_rotated(site: Site) -> Done:
    """Queries and keys of each head turned by one random rotation, where positions are not."""
    places = _free(site)
    size = places[0].size if places else 2
    seed = torch.Generator().manual_seed(site.rng.randrange(2**31))
    turns = [
        torch.linalg.qr(torch.randn(size, size, generator=seed, dtype=torch.float64))[0]
        for _ in range(4)
    ]
    return _queries_turned(site, turns, "turned by a random rotation per head")


@family("rewrite", "honest", STORED)
def queries_and_keys_turned_with_positions(site: Site) -> Done:
    """Queries and keys turned in the planes of the rotary positions, which does not touch these."""
    places = _free(site)
    half = max(places[0].size // 2, 1) if places else 1
    angles = torch.tensor([site.rng.uniform(0.3, 2.8) for _ in range(half)]).double()
    cos, sin = angles.cos().diag(), angles.sin().diag()
    turn = torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])
    return _queries_turned(site, [turn], "turned in the planes of their positions")


@family("rewrite", "honest", STORED)
def values_rotated(site: Site) -> Done:
    """Values of each head turned by a rotation, the output product turned back."""

    def change(module: nn.Module, place: Heads) -> str:
        out = matrix(module.get_submodule(place.out))
        seed = torch.Generator().manual_seed(site.rng.randrange(2**31))
        for number, rows in enumerate(place.v.index):
            noise = torch.randn(place.size, place.size, generator=seed, dtype=torch.float64)
            turn = torch.linalg.qr(noise)[0]
            _turned(module.get_submodule(place.v.path), rows, turn)
            for head in range(number * place.groups, (number + 1) * place.groups):
                read = place.read(head)
                out[:, read] = (out[:, read].double() @ turn.T).to(out)
        return f"values of {place.path} turned by a rotation per head, {place.out} back"

    return drawn(site, _own_heads(site.module), change)
