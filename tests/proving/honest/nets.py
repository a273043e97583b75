"""Honest families for convolutions and recurrent layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import Done, NoPlace, Site, family
from ..places import called, copied, replaced, wrap
from .forms import UNTRACED, WRITTEN
from .rewrites import REORDERED, STORED, factors, order_of
from .wiring import alone, bias, calls, drawn

Tensor = torch.Tensor
Batch = (nn.BatchNorm1d, nn.BatchNorm2d)
Pair = tuple[str, str, str]
"""A convolution, the batch norm after it or nothing, and the convolution that reads them."""


def _convolutions(site: Site) -> list[str]:
    every = called(site.module, site.inputs)
    return alone(site.module, [p for p in every if type(site.module.get_submodule(p)) is nn.Conv2d])


def _normed(site: Site) -> list[tuple[str, str]]:
    """Batch norms that read a convolution's output."""
    made, pairs = calls(site), []
    for before, after in itertools.pairwise(made):
        parts = [site.module.get_submodule(one.path) for one in (before, after)]
        if (
            type(parts[0]) is nn.Conv2d
            and isinstance(parts[1], Batch)
            and after.taken is before.made
        ):
            pairs.append((before.path, after.path))
    return pairs


def _pairs(site: Site) -> list[Pair]:
    paths, normed = _convolutions(site), dict(_normed(site))
    parts = [site.module.get_submodule(path) for path in paths]
    fits = [a.out_channels == b.in_channels for a, b in itertools.pairwise(parts)]
    plain = [part.groups == 1 for part in parts]
    return [
        (first, normed.get(first, ""), second)
        for n, (first, second) in enumerate(itertools.pairwise(paths))
        if fits[n] and plain[n] and plain[n + 1]
    ]


def _channels(module: nn.Module, place: Pair) -> tuple[nn.Module, nn.Module | None, nn.Module]:
    first, norm, second = (module.get_submodule(path) if path else None for path in place)
    assert first is not None
    assert second is not None
    return first, norm, second


@family("rewrite", "honest", STORED)
def channels_permuted(site: Site) -> Done:
    """Channels between two convolutions in another order."""

    def change(module: nn.Module, place: Pair) -> str:
        first, norm, second = _channels(module, place)
        order = order_of(site, len(first.weight))  # type: ignore[arg-type]
        for part in filter(None, (first, norm)):
            stored = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
            for one in (one for one in stored if one.ndim and len(one) == len(order)):
                one.data.copy_(one.data[order].clone())
        second.weight.data.copy_(second.weight.data[:, order].clone())  # type: ignore[union-attr]
        return f"channels between {place[0]} and {place[2]} permuted"

    return drawn(site, _pairs(site), change)


@family("rewrite", "honest", STORED)
def channel_scales_moved(site: Site) -> Done:
    """A factor per channel moved across a ReLU, from one convolution or batch norm to the next."""

    def change(module: nn.Module, place: Pair) -> str:
        first, norm, second = _channels(module, place)
        last = first if norm is None else norm
        factor = factors(site, len(last.weight))  # type: ignore[arg-type]
        weight: Tensor = last.weight.data  # type: ignore[assignment, union-attr]
        weight.copy_(weight.double() * factor.view(-1, *[1] * (weight.ndim - 1)))
        if (shift := bias(last)) is not None:
            shift.copy_(shift.double() * factor)
        read: Tensor = second.weight.data  # type: ignore[assignment, union-attr]
        read.copy_(read.double() / factor[None, :, None, None])
        return f"channels of {place[0]} scaled, {place[2]} the other way"

    return drawn(site, _pairs(site), change)


def _folded(module: nn.Module, place: tuple[str, str]) -> None:
    conv, norm = (module.get_submodule(path) for path in place)
    size = (norm.running_var.double() + norm.eps).rsqrt()  # type: ignore[operator, union-attr]
    size = size * norm.weight.double()  # type: ignore[operator, union-attr]
    shift = 0 if bias(conv) is None else bias(conv).double()  # type: ignore[union-attr]
    shift = (shift - norm.running_mean) * size + norm.bias  # type: ignore[operator]
    weight: Tensor = conv.weight.data  # type: ignore[assignment, union-attr]
    weight.copy_(weight.double() * size[:, None, None, None])
    conv.bias = nn.Parameter(shift.to(weight.dtype))
    replaced(module, place[1], nn.Identity())


@family("rewrite", "honest", STORED)
def batch_norm_folded(site: Site) -> Done:
    """One batch norm folded into the convolution before it."""

    def change(module: nn.Module, place: tuple[str, str]) -> str:
        _folded(module, place)
        return f"{place[1]} folded into {place[0]}"

    return drawn(site, _normed(site), change)


@family("rewrite", "honest", STORED)
def batch_norms_folded_everywhere(site: Site) -> Done:
    """All batch norms folded into the convolutions before them."""

    def change(module: nn.Module, places: list[tuple[str, str]]) -> str:
        for place in places:
            _folded(module, place)
        return f"{len(places)} batch norms folded into convolutions"

    every = _normed(site)
    return drawn(site, [every] if len(every) > 1 else [], change)


@family("rewrite", "honest", WRITTEN)
def batch_norm_as_scale_and_shift(site: Site) -> Done:
    """One batch norm as a factor and a summand that were computed before."""

    def change(module: nn.Module, path: str) -> str:
        norm = module.get_submodule(path)
        size = norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()  # type: ignore[operator, union-attr]
        shift = norm.bias.double() - norm.running_mean.double() * size  # type: ignore[operator, union-attr]
        norm.weight.data.copy_(size)  # type: ignore[union-attr, arg-type]
        norm.bias.data.copy_(shift)  # type: ignore[union-attr, arg-type]

        def affine(self: nn.Module, _: Callable[..., Any], x: Tensor) -> Tensor:
            shape = (1, -1, *[1] * (x.ndim - 2))
            return x * self.weight.view(shape) + self.bias.view(shape)  # type: ignore[operator]

        wrap(norm, affine)
        return f"{path} as a factor and a summand"

    every = called(site.module, site.inputs)
    norms = [path for path in every if isinstance(site.module.get_submodule(path), Batch)]
    return drawn(site, norms, change)


def _unfolded(self: nn.Module, _: Callable[..., Any], x: Tensor) -> Tensor:
    """A convolution as one product over its windows."""
    weight: Tensor = self.weight  # type: ignore[assignment]
    options = (self.kernel_size, self.dilation, self.padding, self.stride)
    windows = F.unfold(x, *options)  # type: ignore[arg-type]
    made = weight.flatten(1) @ windows
    if self.bias is not None:
        made = made + self.bias[:, None]  # type: ignore[operator, index]
    sizes = zip(x.shape[-2:], *options, strict=True)  # type: ignore[call-overload]
    height, width = (
        (n + 2 * pad - dil * (k - 1) - 1) // step + 1 for n, k, dil, pad, step in sizes
    )
    return made.view(*made.shape[:2], height, width)


@family("rewrite", "honest", WRITTEN)
def convolution_as_product(site: Site) -> Done:
    """One convolution as a product over its windows."""

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), _unfolded)
        return f"{path} as a product over its windows"

    return drawn(site, _convolutions(site), change)


@family("rewrite", "honest", WRITTEN)
def convolution_padded_before(site: Site) -> Done:
    """The padding of one convolution added before it, by an operation of its own."""

    def change(module: nn.Module, path: str) -> str:
        conv = module.get_submodule(path)
        if not isinstance(conv.padding, tuple) or not any(conv.padding):
            raise NoPlace
        sides = [side for one in reversed(conv.padding) for side in (one, one)]
        conv.padding = (0, 0)
        wrap(conv, lambda _, inner, x: inner(F.pad(x, sides)))
        return f"{path} padded before"

    return drawn(site, _convolutions(site), change)


@family("rewrite", "honest", WRITTEN)
def pool_as_mean(site: Site) -> Done:
    """An average pool over everything as a mean."""

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), lambda _self, _inner, x: x.mean((-2, -1), keepdim=True))
        return f"{path} as a mean"

    kinds = (nn.AdaptiveAvgPool2d, nn.AvgPool2d)
    every = called(site.module, site.inputs)
    return drawn(
        site, [p for p in every if isinstance(site.module.get_submodule(p), kinds)], change
    )


def _groups(self: nn.Module, _: Callable[..., Any], x: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rows = wide.reshape(len(x), self.num_groups, -1)  # type: ignore[call-overload]
    rows = rows - rows.mean(-1, keepdim=True)
    rows = rows / (rows.square().mean(-1, keepdim=True) + self.eps).sqrt()
    shape = (1, -1, *[1] * (x.ndim - 2))
    made = rows.view(x.shape).to(x.dtype)
    return made * self.weight.view(shape) + self.bias.view(shape)  # type: ignore[operator]


@family("rewrite", "honest", WRITTEN)
def group_norm_written_out(site: Site) -> Done:
    """One group norm written out: less the mean, over the root of the mean of squares."""

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), _groups)
        return f"{path} written out"

    every = called(site.module, site.inputs)
    norms = [path for path in every if type(site.module.get_submodule(path)) is nn.GroupNorm]
    return drawn(site, norms, change)


class Loop(nn.Module):
    """An LSTM as a loop over its layers and steps, with the weights of `nn.LSTM`."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        if lstm.bidirectional or lstm.proj_size or not lstm.bias:
            raise NoPlace
        self.layers, self.width, self.batch_first = (
            lstm.num_layers,
            lstm.hidden_size,
            lstm.batch_first,
        )
        for name, value in lstm.named_parameters():
            self.register_parameter(name, nn.Parameter(value.data.clone()))

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        x = x.transpose(0, 1) if self.batch_first else x
        if state is None:
            empty = x.new_zeros(self.layers, x.shape[1], self.width)
            state = (empty, empty)
        last: list[tuple[Tensor, Tensor]] = []
        for layer in range(self.layers):
            hidden, cell = state[0][layer], state[1][layer]
            steps = []
            for step in x:
                hidden, cell = self.step(layer, step, hidden, cell)
                steps.append(hidden)
            last.append((hidden, cell))
            x = torch.stack(steps)
        hiddens, cells = (torch.stack(list(one)) for one in zip(*last, strict=True))
        return (x.transpose(0, 1) if self.batch_first else x), (hiddens, cells)

    def step(self, layer: int, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, c = (getattr(self, f"{name}_l{layer}") for name in names)
        take, forget, new, give = (x @ w.T + hidden @ u.T + (b + c)).chunk(4, -1)
        cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
        return give.sigmoid() * cell.tanh(), cell


def _lstms(site: Site) -> list[str]:
    return [path for path, part in site.module.named_modules() if type(part) is nn.LSTM and path]


@family("rewrite", "honest", WRITTEN)
def lstm_as_a_loop(site: Site) -> Done:
    """A library's LSTM replaced by a loop over its steps."""

    def change(module: nn.Module, path: str) -> str:
        replaced(module, path, Loop(module.get_submodule(path)).eval())  # type: ignore[arg-type]
        return f"{path} as a loop"

    return drawn(site, _lstms(site), change)


@family("rewrite", "honest", REORDERED)
def lstm_units_permuted(site: Site) -> Done:
    """Units of one layer of an LSTM in another order, up to the layer after it."""

    def change(module: nn.Module, place: tuple[str, int]) -> str:
        lstm, layer = module.get_submodule(place[0]), place[1]
        order = order_of(site, lstm.hidden_size)  # type: ignore[arg-type]
        gates = torch.cat([order + n * len(order) for n in range(4)])
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            stored = getattr(lstm, f"{name}_l{layer}").data
            stored.copy_(stored[gates].clone())
        for name in (f"weight_hh_l{layer}", f"weight_ih_l{layer + 1}"):
            stored = getattr(lstm, name).data
            stored.copy_(stored[:, order].clone())
        return f"units of layer {layer} of {place[0]} permuted"

    places = [
        (path, layer)
        for path in _lstms(site)
        for layer in range(site.module.get_submodule(path).num_layers - 1)  # type: ignore[operator]
    ]
    return drawn(site, places, change)


@family("rewrite", "honest", WRITTEN)
def lstm_layers_apart(site: Site) -> Done:
    """An LSTM of several layers as several LSTMs of one layer."""

    class Stack(nn.Module):
        def __init__(self, lstm: nn.LSTM) -> None:
            super().__init__()
            if lstm.num_layers < 2 or lstm.bidirectional or lstm.proj_size:
                raise NoPlace
            made = []
            for layer in range(lstm.num_layers):
                inputs = lstm.hidden_size if layer else lstm.input_size
                one = nn.LSTM(inputs, lstm.hidden_size, 1, lstm.bias, lstm.batch_first)
                for name, value in one.named_parameters():
                    value.data.copy_(getattr(lstm, name.replace("l0", f"l{layer}")).data)
                made.append(one)
            self.layers = nn.ModuleList(made)

        def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            states = []
            for layer in self.layers:
                x, state = layer(x)
                states.append(state)
            hidden, cell = (torch.cat(list(one)) for one in zip(*states, strict=True))
            return x, (hidden, cell)

    def change(module: nn.Module, path: str) -> str:
        replaced(module, path, Stack(copied(module.get_submodule(path))).eval())  # type: ignore[arg-type]
        return f"layers of {path} as LSTMs of their own"

    return drawn(site, _lstms(site), change)


def _gru(self: nn.Module, _: Callable[..., Any], x: Tensor, hidden: Tensor) -> Tensor:
    given = (x @ self.weight_ih.T + self.bias_ih).chunk(3, -1)  # type: ignore[operator, union-attr]
    kept = (hidden @ self.weight_hh.T + self.bias_hh).chunk(3, -1)  # type: ignore[operator, union-attr]
    reset, update = ((a + b).sigmoid() for a, b in zip(given[:2], kept[:2], strict=True))
    new = (given[2] + reset * kept[2]).tanh()
    return (1 - update) * new + update * hidden


@family("rewrite", "honest", WRITTEN)
def gru_cell_written_out(site: Site) -> Done:
    """A library's GRU cell written out."""

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), _gru)
        return f"{path} written out"

    every = called(site.module, site.inputs)
    return drawn(
        site, [p for p in every if type(site.module.get_submodule(p)) is nn.GRUCell], change
    )


@family("rewrite", "honest", UNTRACED)
def multihead_attention_written_out(site: Site) -> Done:
    """A library's attention module written out with its whole matrix."""

    def written(self: Any, _: Any, q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Any:
        if not self.batch_first or any(more.get(name) is not None for name in ("attn_mask",)):
            raise NoPlace
        rows, count = len(q), self.num_heads
        parts = zip(
            (q, k, v), self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3), strict=True
        )
        made = [
            (x @ w.T + b).view(rows, x.shape[1], count, -1).transpose(1, 2) for x, w, b in parts
        ]
        scores = made[0] @ made[1].transpose(-1, -2) * made[0].shape[-1] ** -0.5
        mixed = (scores.softmax(-1) @ made[2]).transpose(1, 2).flatten(2)
        return F.linear(mixed, self.out_proj.weight, self.out_proj.bias), None

    def change(module: nn.Module, path: str) -> str:
        wrap(module.get_submodule(path), written)
        return f"{path} written out"

    kinds = [
        p for p, part in site.module.named_modules() if isinstance(part, nn.MultiheadAttention)
    ]
    ran = called(site.module, site.inputs)
    return drawn(site, [path for path in kinds if path in ran], change)
