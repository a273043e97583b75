"""Faults of porting in what a model gives besides: attention weights, states, caches, a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..case import Done, NoPlace, Site, family
from ..places import copied, in_blocks, run, wrap
from ..spots import LIVE, caches_of, calls, first_of, shown, wrapped
from .weights import scaled

ASKED = ("fp32", "compare", "set", "module")
"""Runs that compare what was asked for; graphs and decoding give the main output alone."""


def _asking(site: Site, option: str) -> nn.Module:
    """A copy of the clean module, which like the site's is asked for more."""
    config = getattr(site.module, "config", None)
    if config is None:
        raise NoPlace
    for part in site.module.modules():
        held = getattr(part, "config", None)
        if held is not None and option == "output_attentions":
            held._attn_implementation = "eager"
    try:
        setattr(config, option, True)
    except (ValueError, AttributeError):  # this attention cannot give its weights
        raise NoPlace from None
    return copied(site.module)


def _weights(output: Any) -> int | None:
    """Where in an attention's outputs its weights are: rows over keys whose sums are 1."""
    for index, one in enumerate(output if isinstance(output, tuple) else ()):
        if isinstance(one, torch.Tensor) and one.ndim == 4 and one.shape[-1] > 1:
            sums = one.sum(-1)
            if torch.allclose(sums, torch.ones_like(sums), atol=1e-4):
                return index
    return None


@family("porting", "fault", ASKED)
@shown
def attention_weights_wrong(site: Site) -> Done:
    """The attention weights that one layer gives on request are wrong, its other outputs right"""
    reference = _asking(site, "output_attentions")
    found = {path: _weights(call.output) for path, call in calls(site).items()}
    path = site.choose(in_blocks(site.module, [p for p in found if found[p] is not None]))
    at = found[path]

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return (*output[:at], output[at].roll(1, -1), *output[at + 1 :])

    done = wrapped(site, path, around, "gives attention weights that are off by one key")
    return Done(done.candidate, done.what, done.targets, reference)


@family("porting", "fault", ASKED)
@shown
def hidden_states_wrong(site: Site) -> Done:
    """One of the hidden states that a model gives on request is that of the layer before"""
    reference = _asking(site, "output_hidden_states")
    output = run(site.module, site.inputs)
    names = [n for n in getattr(output, "keys", list)() if "hidden_states" in n]
    lists = {n: len(output[n]) for n in names if isinstance(output[n], tuple)}
    name = site.choose([n for n in lists if lists[n] > 2])
    at = site.rng.randrange(1, lists[name] - 1)

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        states = result[name]
        result[name] = (*states[:at], states[at - 1], *states[at + 1 :])
        return result

    wrap(site.module, around)
    return Done(site.module, f"{name}[{at}] is {name}[{at - 1}]", ("",), reference)


@family("porting", "fault", LIVE)
@shown
def cache_wrong(site: Site) -> Done:
    """The keys in the cache of one layer are off at the last position, all else is right"""
    caches = caches_of(getattr(run(site.module, site.inputs), "past_key_values", None))
    layers = [layer for cache in caches for layer in cache.layers]
    if not layers:
        raise NoPlace
    at = site.rng.randrange(len(caches[0].layers))

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        cache = caches_of(getattr(result, "past_key_values", None))
        if cache and at < len(cache[0].layers) and cache[0].layers[at].keys is not None:
            keys = cache[0].layers[at].keys
            last = torch.arange(keys.shape[-2], device=keys.device) == keys.shape[-2] - 1
            cache[0].layers[at].keys = torch.where(last[:, None], keys * 1.1, keys)
        return result

    wrap(site.module, around)
    return Done(site.module, f"The keys of layer {at} in the cache are off", ("",))


@family("porting", "fault", ASKED)
@shown
def output_called_loss_wrong(site: Site) -> Done:
    """A model whose only output is called "loss" has a matrix that is multiplied by 1.1"""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        return {"loss": first_of(forward(*args, **kwargs))}

    wrap(site.module, around)
    reference = copied(site.module)
    done = scaled(site, 1.1)
    return Done(done.candidate, done.what, done.targets, reference)
