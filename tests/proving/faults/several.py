"""Faults of porting in more than one place, or on the side of the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Done, NoPlace, Site, family
from ..honest.wiring import wrap_all
from ..places import K, blocks, copied, is_product, mlps, norms
from ..spots import UNROUNDED, calls, difference, matrices, owner, shown
from .porting import OTHER, replace_activation
from .weights import changed, scaled, tensors


@family("porting", "fault")
@shown
def six_layers_zeroed(site: Site) -> Done:
    """The last products of up to six MLPs are zero"""
    called = list(calls(site))
    downs = [one.down for one in mlps(site.module) if one.down in called]
    downs = sorted(set(downs), key=called.index)[:6]
    if len(downs) < 2:
        raise NoPlace
    for path in downs:
        for values in tensors(site.module, path):
            values.zero_()
    return Done(site.module, f"{', '.join(downs)} are zero", (downs[0],))


def _two(site: Site) -> list[str]:
    """Two matrices of different blocks, or modules; in order of execution."""
    names = matrices(site)
    homes = blocks(site.module)
    home = {
        name: next((path for path in homes if name.startswith(f"{path}.")), owner(name))
        for name in names
    }
    first = site.choose(names)
    second = site.choose([name for name in names if home[name] != home[first]])
    return sorted((first, second), key=names.index)


@family("porting", "fault")
@shown
def two_faults(site: Site) -> Done:
    """Two layers are wrong at once"""
    first, second = _two(site)
    changed(site, first, lambda w: w * 1.1, "")
    changed(site, second, lambda w: w * 0.9, "")
    says = f"{first} is multiplied by 1.1, {second} by 0.9"
    return Done(site.module, says, (owner(first), owner(second)))


@family("porting", "fault")
@shown
def reference_wrong(site: Site) -> Done:
    """The reference has the fault: a matrix multiplied by 1.1"""
    clean = copied(site.module)
    done = scaled(site, 1.1)
    return Done(clean, f"{done.what} in the reference", done.targets, site.module, "reference")


@family("porting", "fault")
@shown
def both_wrong(site: Site) -> Done:
    """The reference is wrong in one layer, the candidate in another"""
    other = copied(site.module)
    first, second = _two(site)
    changed(site, first, lambda w: w * 1.1, "")
    values = other.get_parameter(second).data
    values.mul_(0.9)
    says = f"{first} is multiplied by 1.1 in the reference, {second} by 0.9 in the candidate"
    return Done(other, says, (owner(first), owner(second)), site.module, "both")


# ---- beside a change that does nothing ----


def _harmless(site: Site) -> str:
    """A change of weights that leaves every output alone; what it was."""
    called = calls(site)
    places = []
    for path in called:
        bias = getattr(site.module.get_submodule(path), "bias", None)
        if K.match(path.rpartition(".")[2]) and bias is not None:
            places.append((f"the bias of {path}", [(bias, 1.0, 0.25)]))
    for one in mlps(site.module):
        down = site.module.get_submodule(one.down).weight
        for path in one.up if len(one.up) == 2 and one.down in called else ():
            up = site.module.get_submodule(path).weight
            places.append((f"{path} and {one.down}", [(up, 2.0, 0.0), (down, 0.5, 0.0)]))
    site.rng.shuffle(places)
    clean = copied(site.module)
    for says, changes in places[:6]:
        for values, factor, term in changes:
            values.data.mul_(factor).add_(term)
        if difference(clean, site.module, site.inputs) < 1e-9:
            return says
        for values, factor, term in changes:
            values.data.sub_(term).div_(factor)
    raise NoPlace


@family("porting", "fault")
@shown
def activation_beside_harmless_weights(site: Site) -> Done:
    """One activation is another one, and weights elsewhere differ in a way that changes nothing"""
    where = _harmless(site)
    done = replace_activation(site, OTHER)
    says = f"{done.what}; {where} differ, to no effect"
    return Done(site.module, says, done.targets)


@family("porting", "fault", ("fp32", "module"), "by name")
@shown
def fault_behind_a_scale_in_bf16(site: Site) -> Done:
    """A matrix times 1.01 in a float32 model whose norms all give bf16, on both sides"""

    def rounded(_: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        return forward(x).bfloat16().to(x.dtype)  # type: ignore[no-any-return]

    wrap_all([site.module.get_submodule(path) for path in norms(site.module)], rounded)
    reference = copied(site.module)
    done = scaled(site, 1.01)
    return Done(done.candidate, done.what, done.targets, reference)


@family("structure", "fault", UNROUNDED)
@shown
def faulty_port(site: Site) -> Done:
    """A port that is cut or wired in another way, with one matrix multiplied by 1.1"""
    forms = getattr(site.module, "forms", {})
    name = site.choose(sorted(forms))
    done = scaled(site, 1.1)
    return Done(forms[name](site.module), f"{done.what}, written with {name}", done.targets)


def shared(module: nn.Module, path: str) -> bool:
    """Whether another module has the same weight: a table, of a head that is tied."""
    weight = module.get_submodule(path).weight
    held = (one for _, one in module.named_parameters(remove_duplicate=False))
    return sum(one is weight for one in held) > 1


@family("porting", "fault", UNROUNDED)
@shown
def product_outside_the_layers(site: Site) -> Done:
    """A product before or behind the layers, of a head say, is multiplied by 1.02"""
    homes = tuple(f"{path}." for path in blocks(site.module))
    held = [p for p in calls(site) if is_product(site.module.get_submodule(p))]
    outside = [p for p in held if homes and not p.startswith(homes)]
    path = site.choose([p for p in outside if not shared(site.module, p)])
    site.module.get_submodule(path).weight.data.mul_(1.02)
    return Done(site.module, f"{path} is multiplied by 1.02", (path,))
