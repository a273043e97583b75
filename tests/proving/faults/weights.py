"""Faults of porting that lie in weights: swapped, turned, stale, scaled, dropped."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from ..case import Done, Site, family
from ..places import Mlp, in_blocks, is_product, mlps
from ..spots import (
    UNROUNDED,
    calls,
    generator,
    like_blocks,
    matrices,
    out_view,
    owner,
    rms,
    shown,
    used_heads,
)


def changed(
    site: Site, name: str, change: Callable[[torch.Tensor], torch.Tensor], says: str
) -> Done:
    """One parameter after a change of its numbers."""
    values = site.module.get_parameter(name).data
    values.copy_(change(values.clone()))
    return Done(site.module, f"{name} {says}", (owner(name),))


def scaled(site: Site, factor: float) -> Done:
    name = site.choose(matrices(site))
    return changed(site, name, lambda w: w * factor, f"is multiplied by {factor:g}")


@family("porting", "fault", UNROUNDED)
@shown
def weight_scaled(site: Site) -> Done:
    """One weight matrix is multiplied by 1.01"""
    return scaled(site, 1.01)


@family("porting", "fault", UNROUNDED)
@shown
def weight_scaled_slightly(site: Site) -> Done:
    """One weight matrix is multiplied by 1.001"""
    return scaled(site, 1.001)


def _entry(site: Site, wrong: Callable[[torch.Tensor, float], torch.Tensor], says: str) -> Done:
    """The largest of 32 entries of a matrix gets another number."""
    name = site.choose(matrices(site))
    flat = site.module.get_parameter(name).data.reshape(-1)
    drawn = [site.rng.randrange(flat.numel()) for _ in range(32)]
    place = max(drawn, key=lambda index: abs(float(flat[index])))

    def change(values: torch.Tensor) -> torch.Tensor:
        size = rms(values)
        values.view(-1)[place] = wrong(values.view(-1)[place], size)
        return values

    return changed(site, name, change, f"has entry {place} {says}")


@family("porting", "fault", UNROUNDED)
@shown
def entry_changed(site: Site) -> Done:
    """One entry of a weight matrix is off by a tenth of its typical size"""
    return _entry(site, lambda value, size: value + 0.1 * size, "off by a tenth of the rms")


@family("porting", "fault", UNROUNDED)
@shown
def entry_of_other_sign(site: Site) -> Done:
    """One entry of a weight matrix has the other sign"""
    return _entry(site, lambda value, _: -value, "with the other sign")


@family("porting", "fault")
@shown
def row_zeroed(site: Site) -> Done:
    """One output row of a weight matrix is zero"""
    name = site.choose(matrices(site))
    part = site.module.get_submodule(owner(name))
    values = site.module.get_parameter(name).data
    view = out_view(part) if is_product(part) and name.endswith(".weight") else values
    row = site.rng.randrange(view.shape[0])
    view[row] = 0
    return Done(site.module, f"Output row {row} of {name} is zero", (owner(name),))


def _biases(site: Site) -> list[str]:
    named = dict(site.module.named_parameters())
    found = [n for n in named if "bias" in n.rpartition(".")[2] and named[n].ndim == 1]
    called = calls(site)
    found = [n for n in found if owner(n) in called and rms(named[n]) > 1e-4]
    return in_blocks(site.module, found)


@family("porting", "fault")
@shown
def bias_dropped(site: Site) -> Done:
    """One bias is dropped"""
    return changed(site, site.choose(_biases(site)), torch.zeros_like, "is dropped")


@family("porting", "fault", UNROUNDED)
@shown
def bias_of_one_channel(site: Site) -> Done:
    """One channel of one bias is off by five times its typical size"""
    name = site.choose(_biases(site))
    channel = site.rng.randrange(site.module.get_parameter(name).numel())

    def change(values: torch.Tensor) -> torch.Tensor:
        values[channel] += 5 * rms(values)
        return values

    return changed(site, name, change, f"is off at channel {channel}")


@family("porting", "fault")
@shown
def matrix_transposed(site: Site) -> Done:
    """One square weight matrix is transposed"""
    named = dict(site.module.named_parameters())
    square = [n for n in matrices(site) if named[n].shape[-1] == named[n].shape[-2] > 1]
    square = [n for n in square if named[n].ndim == 2] or square
    return changed(site, site.choose(square), lambda w: w.transpose(-1, -2), "is transposed")


def _cast(site: Site, dtype: torch.dtype) -> Done:
    says = f"is rounded to {str(dtype).removeprefix('torch.')}"
    return changed(site, site.choose(matrices(site)), lambda w: w.to(dtype).to(w.dtype), says)


@family("porting", "fault", UNROUNDED)
@shown
def matrix_in_bf16(site: Site) -> Done:
    """One weight matrix of a float32 model is rounded to bf16"""
    return _cast(site, torch.bfloat16)


@family("porting", "fault", UNROUNDED)
@shown
def matrix_in_fp16(site: Site) -> Done:
    """One weight matrix of a float32 model is rounded to fp16"""
    return _cast(site, torch.float16)


@family("porting", "fault", UNROUNDED)
@shown
def matrix_in_int8(site: Site) -> Done:
    """One weight matrix of a float model is rounded to 255 steps a row"""

    def rounded(values: torch.Tensor) -> torch.Tensor:
        step = values.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        return (values / step).round() * step

    return changed(site, site.choose(matrices(site)), rounded, "is rounded to 255 steps a row")


# ---- in the place of another ----


def _exchange(one: torch.Tensor, other: torch.Tensor) -> None:
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def tensors(module: nn.Module, path: str) -> list[torch.Tensor]:
    part = module.get_submodule(path)
    return [one.data for one in (*part.parameters(), *part.buffers())]


@family("porting", "fault")
@shown
def layer_stale(site: Site) -> Done:
    """One layer has the weights of another"""
    path, other = site.choose(like_blocks(site.module))
    for one, value in zip(tensors(site.module, path), tensors(site.module, other), strict=True):
        one.copy_(value)
    return Done(site.module, f"{path} has the weights of {other}", (path,))


@family("porting", "fault")
@shown
def layers_exchanged(site: Site) -> Done:
    """Two layers have each other's weights"""
    path, other = site.choose(like_blocks(site.module))
    for pair in zip(tensors(site.module, path), tensors(site.module, other), strict=True):
        _exchange(*pair)
    return Done(site.module, f"{path} and {other} have each other's weights", (path, other))


def _twins(site: Site) -> list[tuple[str, str]]:
    """The same matrix of two blocks that are alike, the earlier one first."""
    names = matrices(site)
    pairs = []
    for path, other in like_blocks(site.module):
        inside = [n.removeprefix(path) for n in names if n.startswith(f"{path}.")]
        pairs += [(path + n, other + n) for n in inside if other + n in names]
    return pairs


@family("porting", "fault")
@shown
def matrix_stale(site: Site) -> Done:
    """One matrix is that of another layer"""
    name, other = site.choose(_twins(site))
    value = site.module.get_parameter(other).data
    return changed(site, name, lambda _: value, f"is a copy of {other}")


@family("porting", "fault")
@shown
def matrices_exchanged(site: Site) -> Done:
    """The same matrix of two layers is exchanged"""
    name, other = site.choose(_twins(site))
    _exchange(site.module.get_parameter(name).data, site.module.get_parameter(other).data)
    return Done(site.module, f"{name} and {other} are exchanged", (owner(name), owner(other)))


@family("porting", "fault")
@shown
def key_and_value_swapped(site: Site) -> Done:
    """The weights of keys and values of one attention are swapped"""
    fit = [o for o in used_heads(site) if o.k.weight.shape == o.v.weight.shape]
    fit = [o for o in fit if len(o.k.all) == len(o.v.all)]
    one = site.choose(fit)
    for pair in zip(one.k.all, one.v.all, strict=True):
        _exchange(*pair)
    targets = tuple(dict.fromkeys((one.k.owner, one.v.owner)))
    return Done(site.module, f"Keys and values of {one.path} are swapped", targets)


@family("porting", "fault")
@shown
def gate_and_up_swapped(site: Site) -> Done:
    """The weights of gate and up of one MLP are swapped"""
    called = calls(site)
    places: list[Mlp | str] = [
        one for one in mlps(site.module) if len(one.up) == 2 and all(p in called for p in one.up)
    ]
    fused = re.compile(r"gate_up|up_gate")
    places += [name for name in matrices(site) if fused.search(name)]
    chosen = site.choose(places)
    if isinstance(chosen, str):  # both in one
        halves = site.module.get_parameter(chosen).data
        axis = -1 if getattr(site.module.get_submodule(owner(chosen)), "is_transposed", 0) else -2
        return changed(
            site, chosen, lambda w: torch.cat(halves.clone().chunk(2, axis)[::-1], axis), "swapped"
        )
    for pair in zip(*(tensors(site.module, path) for path in chosen.up), strict=True):
        _exchange(*pair)
    return Done(site.module, f"{' and '.join(chosen.up)} are swapped", chosen.up)


@family("porting", "fault")
@shown
def tied_head_stale(site: Site) -> Done:
    """A head that shares the table's weight has an older copy of its own"""
    tables = {
        id(part.weight): path
        for path, part in site.module.named_modules()
        if isinstance(part, nn.Embedding)
    }
    tied = [
        path
        for path in calls(site)
        if is_product(part := site.module.get_submodule(path)) and id(part.weight) in tables
    ]
    path = site.choose(tied)
    weight = site.module.get_submodule(path).weight.data
    noise = torch.randn(weight.shape, generator=generator(site))
    site.module.get_submodule(path).weight = nn.Parameter(weight + 0.02 * rms(weight) * noise)
    return Done(site.module, f"{path} is no longer tied, and 2% off", (path,))


@family("porting", "fault")
@shown
def table_row_of_another(site: Site) -> Done:
    """The table has another id's row at an id that the probe uses"""
    called = calls(site)
    tables = {p: s for p, s in site.module.named_modules() if isinstance(s, nn.Embedding)}
    path = site.choose([p for p in called if p in tables and tables[p].num_embeddings > 2])
    weight = tables[path].weight
    row = site.choose(sorted(set(called[path].input.flatten().tolist())))
    weight.data[row] = weight.data[(row + 1) % weight.shape[0]].clone()
    holders = tuple(
        p for p in called if getattr(site.module.get_submodule(p), "weight", 0) is weight
    )
    return Done(site.module, f"Row {row} of {path} is that of the next id", holders)
