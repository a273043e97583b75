"""Honest families that write a part otherwise: another module, another formula, one function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import HALVES, MANY, WHOLE, Done, NoPlace, Site, family
from ..places import (
    attentions,
    called,
    copied,
    epsilon,
    inputs_first,
    mlps,
    replaced,
    wrap,
)
from .wiring import alone, bias, drawn, matrix, own_products, plain_norms, used

WRITTEN = (*WHOLE, *HALVES, "onnx", *MANY)
"""All but `int8`: what is no `nn.Linear` any more is not quantised."""
UNTRACED = (*WHOLE, *HALVES, *(one for one in MANY if one != "pair"))
"""Nor what an exporter cannot follow."""

Tensor = torch.Tensor


def linear_of(part: nn.Module) -> nn.Linear:
    """A product as `nn.Linear`."""
    weight, shift = matrix(part), bias(part)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=shift is not None)
    made.weight.data = weight.contiguous().clone()
    if shift is not None:
        made.bias.data = shift.clone()
    return made.eval()


def conv1d_of(part: nn.Module) -> nn.Module:
    """A product as GPT-2 stores it: [inputs, outputs]."""
    from transformers.pytorch_utils import Conv1D

    weight, shift = matrix(part), bias(part)
    made = Conv1D(*weight.shape)
    made.weight.data = weight.T.contiguous().clone()
    made.bias.data = torch.zeros(len(weight)).to(weight) if shift is None else shift.clone()
    return made.eval()


def turned(part: nn.Module) -> nn.Module:
    return linear_of(part) if inputs_first(part) else conv1d_of(part)


class Pointwise(nn.Module):
    """A product as a convolution with a kernel of one."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        weight, shift = matrix(part), bias(part)
        self.conv = nn.Conv1d(weight.shape[1], weight.shape[0], 1, bias=shift is not None)
        self.conv.weight.data = weight.contiguous().clone()[..., None]
        if shift is not None:
            self.conv.bias.data = shift.clone()  # type: ignore[union-attr]

    @property
    def weight(self) -> Tensor:
        return self.conv.weight[..., 0]

    def forward(self, x: Tensor) -> Tensor:
        rows = x if x.ndim > 2 else x[None]
        made = self.conv(rows.flatten(0, -3).transpose(-1, -2)).transpose(-1, -2)
        return made.reshape(*x.shape[:-1], made.shape[-1])


class Halves(nn.Module):
    """One product as two, of which each makes half the outputs."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        whole = linear_of(part)
        self.first, self.second = copied(whole), copied(whole)
        middle = whole.out_features // 2
        for half, rows in ((self.first, slice(middle)), (self.second, slice(middle, None))):
            half.weight.data = whole.weight.data[rows].clone()  # type: ignore[union-attr]
            half.out_features = len(half.weight)  # type: ignore[assignment, arg-type]
            if whole.bias is not None:
                half.bias.data = whole.bias.data[rows].clone()  # type: ignore[union-attr]

    @property
    def weight(self) -> Tensor:
        return torch.cat([self.first.weight, self.second.weight])  # type: ignore[list-item]

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x), self.second(x)], -1)


def _product_replaced(site: Site, make: Callable[[nn.Module], nn.Module], what: str) -> Done:
    def change(module: nn.Module, path: str) -> str:
        replaced(module, path, make(module.get_submodule(path)).eval())
        return f"{path} {what}"

    return drawn(site, used(site, own_products(site.module)), change)


def _products_replaced(site: Site, make: Callable[[nn.Module], nn.Module], what: str) -> Done:
    def change(module: nn.Module, paths: list[str]) -> str:
        for path in paths:
            replaced(module, path, make(module.get_submodule(path)).eval())
        return f"{len(paths)} products {what}"

    every = used(site, own_products(site.module))
    return drawn(site, [every] if len(every) > 1 else [], change)


@family("rewrite", "honest", WRITTEN)
def product_stored_transposed(site: Site) -> Done:
    """The weight of one product stored the other way round, with a module that reads it so."""
    return _product_replaced(site, turned, "stored the other way round")


@family("rewrite", "honest", WRITTEN)
def products_stored_transposed_everywhere(site: Site) -> Done:
    """The weights of all products stored the other way round, with modules that read them so."""
    return _products_replaced(site, turned, "stored the other way round")


@family("rewrite", "honest", WRITTEN)
def product_as_convolution(site: Site) -> Done:
    """One product written as a convolution with a kernel of one."""
    return _product_replaced(site, Pointwise, "as a convolution")


@family("rewrite", "honest", WRITTEN)
def products_as_convolutions_everywhere(site: Site) -> Done:
    """All products written as convolutions with a kernel of one."""
    return _products_replaced(site, Pointwise, "as convolutions")


@family("rewrite", "honest", (*WRITTEN, "int8"))
def product_split_in_two(site: Site) -> Done:
    """One product cut in two that each make half the outputs."""
    return _product_replaced(site, Halves, "in two halves")


class Share(nn.Module):
    """A part of a product that was made before, in place of a product of its own."""

    held: Tensor | None = None

    def forward(self, _: Tensor) -> Tensor:
        assert self.held is not None
        return self.held


def join(home: nn.Module, names: list[str]) -> str:
    """One product in place of several that read the same; their places give its parts."""
    parts = [home.get_submodule(name) for name in names]
    joined = linear_of(parts[0])
    weights, shifts = [matrix(one) for one in parts], [bias(one) for one in parts]
    joined.weight.data = torch.cat(weights).contiguous()
    joined.out_features = len(joined.weight)
    if any(one is not None for one in shifts):
        rows = zip(weights, shifts, strict=True)
        full = [torch.zeros(len(w)).to(w) if one is None else one for w, one in rows]
        joined.bias = nn.Parameter(torch.cat(full))
    title, sizes = "_".join(names), [len(one) for one in weights]
    home.add_module(title, joined)
    for name in names:
        replaced(home, name, Share())

    def around(self: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        pieces = self.get_submodule(title)(x).split(sizes, -1)
        shares = [self.get_submodule(name) for name in names]
        for share, piece in zip(shares, pieces, strict=True):
            share.held = piece  # type: ignore[assignment]
        try:
            return inner(*args, **kwargs)
        finally:
            for share in shares:
                share.held = None  # type: ignore[assignment]

    wrap(home, around)
    return title


def _joined(site: Site, places: list[tuple[str, list[str]]]) -> Done:
    def change(module: nn.Module, place: tuple[str, list[str]]) -> str:
        home, names = place
        title = join(module.get_submodule(home), names)
        return f"{', '.join(names)} of {home} in one product, {title}"

    def free(place: tuple[str, list[str]]) -> bool:
        paths = [f"{place[0]}.{name}" for name in place[1]]
        return len(alone(site.module, paths)) == len(paths)

    return drawn(site, [place for place in places if place[0] and free(place)], change)


def _names(*paths: str) -> list[str]:
    return [path.rpartition(".")[2] for path in paths]


@family("rewrite", "honest", UNTRACED)
def queries_keys_values_fused(site: Site) -> Done:
    """Queries, keys and values of one attention made by one product and split afterwards."""
    places = [(one.path, _names(one.q, one.k, one.v)) for one in attentions(site.module)]
    return _joined(site, places)


@family("rewrite", "honest", UNTRACED)
def gate_and_up_fused(site: Site) -> Done:
    """Gate and up of one MLP made by one product and split afterwards."""
    return _joined(site, [(m.path, _names(*m.up)) for m in mlps(site.module) if len(m.up) == 2])


@family("rewrite", "honest", WRITTEN)
def embedding_as_product(site: Site) -> Done:
    """A table looked up by a product with one-hot rows."""

    def one_hot(self: nn.Module, _: Callable[..., Any], ids: Tensor) -> Tensor:
        table: Tensor = self.weight  # type: ignore[assignment]
        return F.one_hot(ids, len(table)).to(table.dtype) @ table

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), one_hot)
        return f"{path} as a product with one-hot rows"

    tables = [p for p, part in site.module.named_modules() if type(part) is nn.Embedding]
    return drawn(site, used(site, tables), change)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _mean_of_squares(x: Tensor, weight: Tensor, shift: Tensor | None, eps: float) -> Tensor:
    wide = _wide(x)
    mean = wide.mean(-1, keepdim=True)
    size = (wide * wide).mean(-1, keepdim=True) - mean * mean
    made = ((wide - mean) / (size + eps).sqrt()).to(x.dtype) * weight
    return made if shift is None else made + shift


def _root_of_sum(x: Tensor, weight: Tensor, _: Tensor | None, eps: float) -> Tensor:
    wide = _wide(x)
    size = torch.einsum("...i,...i->...", wide, wide)[..., None] / x.shape[-1]
    return (wide / (size + eps).sqrt()).to(x.dtype) * weight


def _root_of_sum_plus_one(x: Tensor, weight: Tensor, _: Tensor | None, eps: float) -> Tensor:
    return _root_of_sum(x, 1 + weight, None, eps)


Formula = Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
NORMS: tuple[Formula, ...] = (_mean_of_squares, _root_of_sum, _root_of_sum_plus_one)


def _formula(norm: nn.Module) -> Formula | None:
    """Which of the formulas is that of a norm."""
    weight: Tensor = norm.weight.data  # type: ignore[assignment, union-attr]
    x = torch.linspace(-2, 3, 3 * weight.numel()).sin().view(3, -1) + 0.3
    eps = getattr(norm, epsilon(norm) or "")
    for formula in NORMS:
        with torch.no_grad():
            if torch.allclose(norm(x), formula(x, weight, bias(norm), eps), 1e-4, 1e-5):
                return formula
    return None


def _norm_written(module: nn.Module, path: str) -> None:
    norm = module.get_submodule(path)
    formula = _formula(norm)
    if formula is None:
        raise NoPlace
    name = epsilon(norm) or ""

    def otherwise(self: nn.Module, _: Callable[..., Any], x: Tensor) -> Tensor:
        return formula(x, self.weight, getattr(self, "bias", None), getattr(self, name))  # type: ignore[arg-type]

    wrap(norm, otherwise)


@family("rewrite", "honest", (*WRITTEN, "int8"))
def norm_written_otherwise(site: Site) -> Done:
    """One norm by another formula: the mean of squares less the square of the mean, or a root."""

    def change(module: nn.Module, path: str) -> str:
        _norm_written(module, path)
        return f"{path} by another formula"

    return drawn(site, used(site, plain_norms(site.module)), change)


@family("rewrite", "honest", (*WRITTEN, "int8"))
def norms_written_otherwise_everywhere(site: Site) -> Done:
    """All norms by another formula."""

    def change(module: nn.Module, paths: list[str]) -> str:
        for path in paths:
            _norm_written(module, path)
        return f"{len(paths)} norms by another formula"

    every = used(site, plain_norms(site.module))
    return drawn(site, [every] if len(every) > 1 else [], change)


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: tuple[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], ...] = (
    (F.gelu, lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
    (_tanh_gelu, lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))),
    (F.silu, lambda x: x / (1 + torch.exp(-x))),
    (F.relu, lambda x: torch.where(x > 0, x, torch.zeros_like(x))),
    (torch.tanh, lambda x: 2 * torch.sigmoid(2 * x) - 1),
    (torch.sigmoid, lambda x: 0.5 * (1 + torch.tanh(x / 2))),
    (lambda x: x * torch.sigmoid(1.702 * x), lambda x: x / (1 + torch.exp(-1.702 * x))),
)
"""Functions, each with another way to write it."""


def written_otherwise(part: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Another way to write a module that only applies one of the known functions."""
    if any(True for _ in part.parameters()) or any(True for _ in part.children()):
        return None
    x = torch.linspace(-6, 6, 49, dtype=torch.float64)
    try:
        made = part(x.clone())
    except Exception:
        return None
    if not isinstance(made, Tensor) or made.shape != x.shape:
        return None
    ways = [way for known, way in ACTIVATIONS if torch.allclose(known(x), made, 1e-9, 1e-9)]
    return ways[0] if ways else None


@family("rewrite", "honest", (*WRITTEN, "int8"))
def activation_written_otherwise(site: Site) -> Done:
    """One activation by another formula of the same function: GELU by erf, SiLU by a division."""

    def change(module: nn.Module, path: str) -> str:
        part = module.get_submodule(path)
        way = written_otherwise(part)
        assert way is not None
        wrap(part, lambda _self, _inner, x: way(x))
        return f"{path} by another formula of the same function"

    parts = called(site.module, site.inputs)
    return drawn(
        site, [p for p in parts if written_otherwise(site.module.get_submodule(p))], change
    )


@family("rewrite", "honest", (*WRITTEN, "int8"))
def rotary_table_in_float64(site: Site) -> Done:
    """Angles of rotary positions computed in float64 and rounded once."""

    def exact(self: nn.Module, _: Callable[..., Any], x: Tensor, position_ids: Tensor) -> Any:
        rates: Tensor = self.inv_freq  # type: ignore[assignment]
        angles = position_ids[:, :, None].double() * rates.double()
        both, scaling = torch.cat([angles, angles], -1), getattr(self, "attention_scaling", 1.0)
        return (both.cos() * scaling).to(x.dtype), (both.sin() * scaling).to(x.dtype)

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), exact)
        return f"angles of {path} in float64"

    tables = [p for p, part in site.module.named_modules() if hasattr(part, "inv_freq")]
    return drawn(site, tables, change)
