"""Honest families that compute the same otherwise: other sums, kernels, threads, batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import HALVES, MANY, WHOLE, Done, NoPlace, Site, family
from ..places import blocks, called, inputs_first, mlps, wrap
from .forms import UNTRACED, WRITTEN
from .wiring import drawn, matrix, own_products, used

Tensor = torch.Tensor
LARGEST = 80
"""Parts of a model that is compiled: minutes pass for a larger one."""
Sum = Callable[[Tensor, Tensor], Tensor]
"""A product of rows with a weight [outputs, inputs], summed in some order."""


def wide(x: Tensor) -> Tensor:
    """In what a kernel sums: float32 for halves."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def flipped(x: Tensor, weight: Tensor) -> Tensor:
    return wide(x).flip(-1) @ wide(weight).flip(-1).T


def in_chunks(x: Tensor, weight: Tensor, count: int = 4) -> Tensor:
    size = max(-(-x.shape[-1] // count), 1)
    pairs = zip(wide(x).split(size, -1), wide(weight).split(size, -1), strict=True)
    total, *rest = (a @ b.T for a, b in pairs)
    for one in rest:
        total = total + one
    return total


def one_by_one(x: Tensor, weight: Tensor) -> Tensor:
    """Summed in order, as the plainest loop does."""
    return in_chunks(x, weight, x.shape[-1])


def in_float64(x: Tensor, weight: Tensor) -> Tensor:
    return x.double() @ weight.double().T


def padded(x: Tensor, weight: Tensor) -> Tensor:
    more = 8 - x.shape[-1] % 8
    return F.pad(wide(x), (0, more)) @ F.pad(wide(weight), (0, more)).T


def batched(x: Tensor, weight: Tensor) -> Tensor:
    rows = wide(x).reshape(-1, *x.shape[-2:]) if x.ndim > 1 else wide(x)[None, None]
    made = torch.bmm(rows, wide(weight).T.expand(len(rows), -1, -1))
    return made.reshape(*x.shape[:-1], len(weight))


def by_einsum(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("...i,oi->...o", wide(x), wide(weight))


def weight_first(x: Tensor, weight: Tensor) -> Tensor:
    return (wide(weight) @ wide(x).transpose(-1, -2)).transpose(-1, -2)


def row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """Rows of a batch each on their own."""
    return torch.stack([wide(row) @ wide(weight).T for row in x])


def by_tokens(x: Tensor, weight: Tensor) -> Tensor:
    """A few tokens at a time."""
    return torch.cat([wide(one) @ wide(weight).T for one in x.split(3, -2)], -2)


def compensated(x: Tensor, weight: Tensor) -> Tensor:
    """Two halves of each float32 number apart, as emulations on tensor cores do."""
    high = wide(x).to(torch.bfloat16).to(wide(x))
    return high @ wide(weight).T + (wide(x) - high) @ wide(weight).T


def summed(part: nn.Module, by: Sum) -> None:
    """Have a product summed in another order."""

    def around(self: nn.Module, _: Callable[..., Any], x: Tensor) -> Tensor:
        stored: Tensor = self.weight  # type: ignore[assignment]
        made = by(x, stored.T if inputs_first(self) else stored)
        return (made if self.bias is None else made + self.bias).to(x.dtype)  # type: ignore[operator]

    wrap(part, around)


def _one(site: Site, by: Sum, what: str) -> Done:
    return _some(site, by, what, [[path] for path in used(site, _shapely(site))])


def _every(site: Site, by: Sum, what: str) -> Done:
    every = used(site, _shapely(site))
    return _some(site, by, what, [every] if len(every) > 1 else [])


def _shapely(site: Site) -> list[str]:
    """Products, also those whose weight is shared: nothing stored changes."""
    kinds = [*own_products(site.module)]
    parts = dict(site.module.named_modules())
    kinds += [path for path, part in parts.items() if type(part) is nn.Linear and path not in kinds]
    return [path for path in kinds if matrix(parts[path]).shape[1] > 1]


def _some(site: Site, by: Sum, what: str, places: list[list[str]]) -> Done:
    def change(module: nn.Module, paths: list[str]) -> str:
        for path in paths:
            summed(module.get_submodule(path), by)
        return f"{paths[0] if len(paths) == 1 else f'{len(paths)} products'} {what}"

    return drawn(site, places, change)


@family("machine", "honest", WRITTEN)
def sum_flipped(site: Site) -> Done:
    """One product summed from the last input to the first."""
    return _one(site, flipped, "summed from the last input to the first")


@family("machine", "honest", WRITTEN)
def sums_flipped_in_two_blocks(site: Site) -> Done:
    """The products of two blocks summed from the last input to the first."""
    homes = blocks(site.module)
    if len(homes) < 3:
        raise NoPlace
    pair = site.rng.sample(homes, 2)
    inside = [p for p in used(site, _shapely(site)) if any(p.startswith(f"{h}.") for h in pair)]
    return _some(site, flipped, "summed from the last input", [inside] if inside else [])


@family("machine", "honest", WRITTEN)
def sums_flipped_everywhere(site: Site) -> Done:
    """All products summed from the last input to the first."""
    return _every(site, flipped, "summed from the last input to the first")


@family("machine", "honest", WRITTEN)
def sum_in_chunks(site: Site) -> Done:
    """One product summed in four parts of its inputs, as kernels split it."""
    return _one(site, in_chunks, "summed in four parts")


@family("machine", "honest", WRITTEN)
def sums_in_chunks_everywhere(site: Site) -> Done:
    """All products summed in four parts of their inputs, as kernels split them."""
    return _every(site, in_chunks, "summed in four parts")


@family("machine", "honest", UNTRACED)
def sum_one_by_one(site: Site) -> Done:
    """One product summed input by input, as the plainest loop does: the worst order there is."""
    return _one(site, one_by_one, "summed input by input")


@family("machine", "honest", WRITTEN)
def sum_in_float64(site: Site) -> Done:
    """One product summed in float64 and rounded: nearer to the truth than the reference is."""
    return _one(site, in_float64, "summed in float64")


@family("machine", "honest", WRITTEN)
def sums_in_float64_everywhere(site: Site) -> Done:
    """All products summed in float64 and rounded: nearer to the truth than the reference is."""
    return _every(site, in_float64, "summed in float64")


@family("machine", "honest", WRITTEN)
def inputs_padded(site: Site) -> Done:
    """The inputs of one product padded with zeros to the next multiple of eight."""
    return _one(site, padded, "padded with zeros")


@family("machine", "honest", UNTRACED)
def products_batched_everywhere(site: Site) -> Done:
    """All products as batched ones, `bmm`, with the weight once per row."""
    return _every(site, batched, "as batched products")


@family("machine", "honest", WRITTEN)
def products_by_einsum_everywhere(site: Site) -> Done:
    """All products by `einsum`."""
    return _every(site, by_einsum, "by einsum")


@family("machine", "honest", WRITTEN)
def weights_first_everywhere(site: Site) -> Done:
    """All products with the weight on the left and the rows turned, as column-major engines do."""
    return _every(site, weight_first, "with the weight on the left")


@family("machine", "honest", UNTRACED)
def product_row_by_row(site: Site) -> Done:
    """All products computed for the rows of a batch one after the other."""
    return _every(site, row_by_row, "row by row")


@family("machine", "honest", UNTRACED)
def product_by_tokens(site: Site) -> Done:
    """One product computed for three tokens at a time."""
    return _one(site, by_tokens, "for three tokens at a time")


@family("machine", "honest", UNTRACED)
def products_in_two_precisions_everywhere(site: Site) -> Done:
    """Inputs of all products in a high and a low part that are multiplied apart and added."""
    return _every(site, compensated, "in a high and a low part")


@family("machine", "honest", UNTRACED)
def mlp_by_tokens(site: Site) -> Done:
    """One MLP computed for three tokens at a time, as engines do to save memory."""

    def around(_: nn.Module, inner: Callable[..., Any], x: Tensor) -> Tensor:
        return torch.cat([inner(one.contiguous()) for one in x.split(3, -2)], -2)

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), around)
        return f"{path} for three tokens at a time"

    ran = called(site.module, site.inputs)
    places = [one.path for one in mlps(site.module) if one.path in ran]
    return drawn(site, [path for path in places if path not in blocks(site.module)], change)


@family("machine", "honest", (*WHOLE, *HALVES, "int8", *MANY))
def channels_last(site: Site) -> Done:
    """Images and weights of convolutions stored with their channels last."""
    if not any(isinstance(part, nn.Conv2d) for part in site.module.modules()):
        raise NoPlace

    def stored(_: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def last(value: Any) -> Any:
            image = isinstance(value, Tensor) and value.ndim == 4
            return value.contiguous(memory_format=torch.channels_last) if image else value

        named = {name: last(value) for name, value in kwargs.items()}
        return inner(*map(last, args), **named)

    def change(module: nn.Module, _: str) -> str:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        wrap(module, stored)
        return "channels last"

    return drawn(site, [""], change)


def _wrapped(site: Site, around: Callable[..., Any], what: str) -> Done:
    def change(module: nn.Module, _: str) -> str:
        wrap(module, around)
        return what

    return drawn(site, [""], change)


@family("machine", "honest", UNTRACED)
def other_threads(site: Site) -> Done:
    """Two threads where the reference has as many as are set."""

    def around(_: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(1 if before > 1 else 2)
        try:
            return inner(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return _wrapped(site, around, "another number of threads")


@family("machine", "honest", UNTRACED)
def without_onednn(site: Site) -> Done:
    """PyTorch's own kernels in place of those of oneDNN."""

    def around(_: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # `mkldnn.flags` warns of settings of GPUs
        try:
            return inner(*args, **kwargs)
        finally:
            torch._C._set_mkldnn_enabled(before)

    return _wrapped(site, around, "without oneDNN")


@family("machine", "honest", UNTRACED)
def encoder_layers_unfused(site: Site) -> Done:
    """Encoder layers of PyTorch without their fused kernel."""
    kinds = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    if not any(isinstance(part, kinds) for part in site.module.modules()):
        raise NoPlace

    def around(_: nn.Module, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return inner(*args, **kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)

    return _wrapped(site, around, "without the fused kernel of encoder layers")


def _joined(outputs: list[Any]) -> Any:
    """Outputs of single rows as those of a batch."""
    first = outputs[0]
    if isinstance(first, Tensor):
        return torch.cat(outputs)
    if isinstance(first, Mapping):
        made = {name: [one[name] for one in outputs] for name in first}
        tensors = {name: _joined(rows) for name, rows in made.items() if _holds(rows[0])}
        return type(first)(**tensors)
    if isinstance(first, list | tuple):
        return type(first)([_joined(list(rows)) for rows in zip(*outputs, strict=True)])
    raise NoPlace


def _holds(value: Any) -> bool:
    return isinstance(value, Tensor) or (
        isinstance(value, list | tuple) and all(map(_holds, value))
    )


@family("machine", "odd", WHOLE)
def rows_one_by_one(site: Site) -> Done:
    """The whole model run for each row of a batch alone: its layers are called several times."""

    def around(_: nn.Module, inner: Callable[..., Any], **kwargs: Any) -> Any:
        rows = max(len(value) for value in kwargs.values() if isinstance(value, Tensor))
        given = [
            {k: v[n : n + 1] if isinstance(v, Tensor) else v for k, v in kwargs.items()}
            for n in range(rows)
        ]
        return _joined([inner(**one) for one in given])

    if max(len(value) for value in site.inputs.values()) < 2:
        raise NoPlace
    return _wrapped(site, around, "each row on its own")


@family("machine", "honest", WHOLE)
def compiled(site: Site) -> Done:
    """The model through `torch.compile` with its own compiler."""
    if len(list(site.module.modules())) > LARGEST:
        raise NoPlace
    return Done("torch,compile=inductor", "compiled with inductor")


@family("machine", "honest", WHOLE)
def threads_by_option(site: Site) -> Done:
    """driftwalk's own backend with the option `threads=2`."""
    return Done("torch,threads=2", "two threads by an option")
