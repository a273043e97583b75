"""Faults of porting around attention: scales, masks, positions, ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..case import Done, NoPlace, Site, family
from ..places import in_blocks
from ..spots import Call, argument, calls, place_of, shown, used_heads, with_argument, wrapped

_SCALE = ("scaling", "scale", "softmax_scale", "scale_factor", "norm_factor", "inv_norm_factor")


@family("porting", "fault")
@shown
def attention_scale(site: Site) -> Done:
    """The scores of one attention are scaled by 1/d, not by 1/sqrt(d)"""
    sizes = {one.path: one.size for one in used_heads(site)}
    places = [
        (path, name, value)
        for path in in_blocks(site.module, list(sizes))
        for name in _SCALE
        if isinstance(value := getattr(site.module.get_submodule(path), name, None), float)
    ]
    path, name, value = site.choose(places)
    wrong = value * value if value != 1 else sizes[path] ** -0.5
    setattr(site.module.get_submodule(path), name, wrong)
    return Done(site.module, f"{path}.{name} is {wrong:.4g}, not {value:.4g}", (path,))


_MASK = ("attention_mask", "mask", "attn_mask")


def _allowed(mask: torch.Tensor) -> torch.Tensor:
    """Which key each query may see."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _masked(site: Site) -> dict[str, tuple[bool, bool]]:
    """Attentions that take a mask: whether it hides what comes later, and any padding."""
    made: dict[str, tuple[bool, bool]] = {}
    for path, call in calls(site).items():
        part = site.module.get_submodule(path)
        inner = (p for n, p in part.named_modules() if n and place_of(p, _MASK))
        at = place_of(part, _MASK)
        if at is None or next(inner, None) is not None:
            continue
        mask = argument(at, call.args, call.kwargs)
        if mask is None:
            causal = getattr(part, "is_causal", False) is True
            made[path] = (causal and call.main.ndim == 3, False)
        elif isinstance(mask, torch.Tensor) and mask.ndim == 4:
            allowed = _allowed(mask)
            later = bool((allowed.any(-2, keepdim=True) & ~allowed).triu(1).any())
            square = allowed.shape[-1] == allowed.shape[-2]
            made[path] = (square and later, not bool(allowed.any(-2).all()))
    return made


def _with_mask(site: Site, path: str, ahead: int | None, padded: bool, says: str) -> Done:
    """An attention whose queries see `ahead` keys after their own, or all; with padding or not."""
    at = place_of(site.module.get_submodule(path), _MASK)
    assert at is not None

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        mask = argument(at, args, kwargs)
        x = args[0] if args else next(iter(kwargs.values()))
        queries, keys = (x.shape[1],) * 2 if mask is None else mask.shape[-2:]
        if queries == 1 and ahead is not None:
            return forward(*args, **kwargs)
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=x.device)
        if ahead is not None:
            allowed = allowed.tril(keys - queries + ahead)
        if mask is not None:
            seen = _allowed(mask)
            allowed = allowed & seen.any(-2, keepdim=True) if padded else allowed.expand_as(seen)
            if mask.dtype != torch.bool:
                low = torch.finfo(mask.dtype).min
                allowed = torch.zeros_like(allowed, dtype=mask.dtype).masked_fill(~allowed, low)
        args, kwargs = with_argument(at, args, kwargs, allowed)
        return forward(*args, **kwargs)

    return wrapped(site, path, around, says)


def _masking(site: Site, later: bool, padding: bool) -> str:
    masked = _masked(site)
    fit = [p for p in masked if (masked[p][0] or not later) and (masked[p][1] or not padding)]
    path: str = site.choose(in_blocks(site.module, fit))
    return path


@family("porting", "fault")
@shown
def sees_one_ahead(site: Site) -> Done:
    """The causal mask of one attention lets each token see the next one"""
    return _with_mask(site, _masking(site, True, False), 1, True, "sees one token ahead")


@family("porting", "fault")
@shown
def no_causal_mask(site: Site) -> Done:
    """One attention has no causal mask"""
    return _with_mask(site, _masking(site, True, False), None, True, "sees all that comes later")


@family("porting", "fault")
@shown
def padding_seen(site: Site) -> Done:
    """One attention sees padding"""
    path = _masking(site, False, True)
    ahead = 0 if _masked(site)[path][0] else None
    return _with_mask(site, path, ahead, False, "sees padding")


# ---- positions, ids, kinds ----

_POSITIONS = re.compile(r"position|wpe|pos_emb|relative_attention_bias", re.IGNORECASE)


@family("porting", "fault")
@shown
def positions_off_by_one(site: Site) -> Done:
    """A table of positions is off by one"""
    called = calls(site)
    names = [
        name
        for name, p in site.module.named_parameters()
        if p.ndim > 1 and _POSITIONS.search(name) and min(p.shape[-2:]) > 1
    ]
    paths = {name: name.rpartition(".")[0] for name in names}
    name = site.choose([name for name in names if paths[name] in called])
    values = site.module.get_parameter(name).data
    values.copy_(values.roll(1, -2))
    return Done(site.module, f"{name} is off by one", (paths[name],))


def _rotary(site: Site, call: Callable[[Call], bool] = lambda call: True) -> str:
    found = calls(site)
    paths = [
        path
        for path in found
        if "rotary" in type(site.module.get_submodule(path)).__name__.lower() and call(found[path])
    ]
    path: str = site.choose(paths)
    return path


@family("porting", "fault")
@shown
def rotary_off_by_one(site: Site) -> Done:
    """The rotary angles of the first position are those of the last, all others one behind"""

    def pair(call: Call) -> bool:
        return isinstance(call.output, tuple) and len(call.output) == 2

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        return tuple(one.roll(1, -2) for one in forward(*args, **kwargs))

    return wrapped(site, _rotary(site, pair), around, "gives angles that are off by one")


@family("porting", "fault")
@shown
def rotary_of_other_base(site: Site) -> Done:
    """The rotary angles have another base"""
    path = _rotary(site)
    part = site.module.get_submodule(path)
    rates = {n: b for n, b in part.named_buffers() if "inv_freq" in n}
    if not rates:
        raise NoPlace
    for rate in rates.values():
        rate.copy_(rate**1.2)
    return Done(site.module, f"{path} has its base to the power of 1.2", (path,))


@family("porting", "fault")
@shown
def ids_off_by_one(site: Site) -> Done:
    """The table of words is read one row further on"""

    def around(part: Any, forward: Any, ids: torch.Tensor) -> torch.Tensor:
        return forward((ids + 1) % part.num_embeddings)

    called = calls(site)
    parts = {path: site.module.get_submodule(path) for path in called}
    tables = [path for path, part in parts.items() if isinstance(part, nn.Embedding)]
    words = [path for path in tables if not re.search(r"posi|wpe|type|segment|relative", path)]
    return wrapped(site, site.choose(words), around, "is read one row further on")


@family("porting", "fault")
@shown
def token_types_ignored(site: Site) -> Done:
    """The table of token types is left out"""
    found = [p for p in calls(site) if re.search(r"token_type|segment", p.rpartition(".")[2])]
    paths = [p for p in found if isinstance(site.module.get_submodule(p), nn.Embedding)]
    path = site.choose(paths)
    site.module.get_submodule(path).weight.data.zero_()
    return Done(site.module, f"{path} adds nothing", (path,))
