"""Faults of porting in the order of rows: heads, rotary pairs, gates."""

from __future__ import annotations

import re

import torch
from torch import nn

from ..case import Done, Site, family
from ..places import is_product
from ..spots import Rows, calls, out_view, shown, used_heads
from .weights import changed


@family("porting", "fault")
@shown
def query_scaled(site: Site) -> Done:
    """The queries of one attention are multiplied by 0.9"""
    one = site.choose(used_heads(site))
    for values in one.q.all:
        values.mul_(0.9)
    return Done(site.module, f"The queries of {one.path} are 0.9 of what they were", (one.q.owner,))


def _by_head(rows: Rows, size: int, order: list[int]) -> None:
    count = rows.weight.shape[0]
    rows.take(torch.arange(count).view(-1, size)[order].flatten())


@family("porting", "fault")
@shown
def query_heads_in_other_order(site: Site) -> Done:
    """The heads of the queries of one attention, not of its keys, are in another order"""
    one = site.choose([one for one in used_heads(site) if one.heads > 1])
    order = list(range(one.heads))
    while order == sorted(order):
        site.rng.shuffle(order)
    _by_head(one.q, one.size, order)
    return Done(site.module, f"The query heads of {one.path} are in order {order}", (one.q.owner,))


@family("porting", "fault")
@shown
def stored_heads_in_other_order(site: Site) -> Done:
    """The heads of keys and values are repeated for other queries than theirs"""
    fit = [one for one in used_heads(site) if 1 < one.stored < one.heads]
    one = site.choose(fit)
    order = list(range(one.stored))[::-1]
    for rows in (one.k, one.v):
        _by_head(rows, one.size, order)
    targets = tuple(dict.fromkeys((one.k.owner, one.v.owner)))
    return Done(site.module, f"The stored heads of {one.path} are in order {order}", targets)


_OUT = re.compile(r"^(o|o_proj|out_proj|dense|c_proj|wo|out|to_out)$")


@family("porting", "fault")
@shown
def stored_heads_tiled(site: Site) -> Done:
    """Heads of keys and values are tiled where each should be repeated in a row"""
    places = []
    for one in used_heads(site):
        for name, part in site.module.get_submodule(one.path).named_children():
            if is_product(part) and _OUT.match(name) and 1 < one.stored < one.heads:
                places.append((one, f"{one.path}.{name}", out_view(part)))
    one, path, out = site.choose(places)
    repeats = one.heads // one.stored
    # Query head h reads stored head h % stored: move it to a slot that does.
    slots = [0] * one.heads
    for head in range(one.heads):
        slots[head % one.stored * repeats + head // one.stored] = head
    _by_head(one.q, one.size, slots)
    columns = torch.arange(out.shape[1]).view(-1, one.size)[slots].flatten()
    out.copy_(out[:, columns].clone())
    return Done(site.module, f"{one.path} tiles its stored heads", (one.q.owner, path))


def _pairs(site: Site, keys_too: bool) -> Done:
    rotary = any("rotary" in type(part).__name__.lower() for part in site.module.modules())
    fit = [one for one in used_heads(site) if rotary and one.size % 4 == 0]
    one = site.choose(fit)
    order = torch.arange(one.size).view(-1, 2).T.flatten()
    for rows in (one.q, one.k) if keys_too else (one.q,):
        heads = torch.arange(rows.weight.shape[0]).view(-1, one.size)
        rows.take(heads[:, order].flatten())
    targets = (one.q.owner, one.k.owner) if keys_too else (one.q.owner,)
    what = "queries and keys" if keys_too else "queries"
    says = f"The {what} of {one.path} are in the order of interleaved rotary pairs"
    return Done(site.module, says, tuple(dict.fromkeys(targets)))


@family("porting", "fault")
@shown
def rotary_pairs_interleaved(site: Site) -> Done:
    """Queries and keys of one layer are in the order of interleaved rotary pairs"""
    return _pairs(site, keys_too=True)


@family("porting", "fault")
@shown
def rotary_pairs_of_queries(site: Site) -> Done:
    """Queries of one layer, not keys, are in the order of interleaved rotary pairs"""
    return _pairs(site, keys_too=False)


# ---- recurrent nets ----


_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


def _recurrent(site: Site) -> tuple[str, list[str], int]:
    """A recurrent layer: its path, the names of its tensors, how many gates there are."""
    places = []
    for path in calls(site):
        part = site.module.get_submodule(path)
        names = [n for n, _ in part.named_parameters(recurse=False) if n.startswith("weight_hh")]
        for name in names if type(part) in _GATES else ():
            end = name.removeprefix("weight_hh")
            tensors = [
                f"{kind}_{side}{end}" for kind in ("weight", "bias") for side in ("ih", "hh")
            ]
            places.append((path, [t for t in tensors if hasattr(part, t)], _GATES[type(part)]))
    chosen: tuple[str, list[str], int] = site.choose(places)
    return chosen


@family("porting", "fault")
@shown
def gates_in_other_order(site: Site) -> Done:
    """The gates of one recurrent layer are in the order of another library"""
    path, names, gates = _recurrent(site)
    order = [0, 1, 3, 2] if gates == 4 else [1, 0, 2]
    for name in names:
        values = getattr(site.module.get_submodule(path), name).data
        values.copy_(torch.cat([values.clone().chunk(gates)[gate] for gate in order]))
    return Done(site.module, f"The gates of {path} ({names[0]}) are in order {order}", (path,))


@family("porting", "fault")
@shown
def recurrent_bias_dropped(site: Site) -> Done:
    """One of the two biases of a recurrent layer is dropped"""
    path, names, _ = _recurrent(site)
    name = site.choose([name for name in names if "bias" in name])
    return changed(site, f"{path}.{name}", torch.zeros_like, "is dropped")
