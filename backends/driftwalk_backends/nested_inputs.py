"""Inputs whose names are paths, as a file has them: `past_key_values.0.key`, `options.sizes.1`.

A file of named arrays knows no lists, dicts and caches. Where forward takes what a path begins with
and not the path itself, the arrays are put together: numbers are places in a list, words are keys
of a dict, and what transformers keeps of earlier tokens is its cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from driftwalk.errors import ProbeError
from driftwalk.states import Probe

from .calls import forward_of
from .loaded import LoadedModel

CACHE = "past_key_values"


def nested(model: LoadedModel, probe: Probe) -> Probe:
    """The probe with its paths made into what forward takes."""
    names = forward_of(model.module).names
    tree: dict[str, Any] = {}
    for path in probe.inputs:
        head, *rest = path.split(".")
        if rest and path not in names and head in names:
            _plant(tree, (head, *rest), probe.inputs[path], path)
    if not tree:
        return probe
    if given := tree.keys() & {*probe.inputs, *probe.others}:
        name = min(given)
        raise ProbeError(f"Probe input {name!r} was given, and so were arrays inside it.")
    made = {head: _grown(head, inside) for head, inside in tree.items()}
    if CACHE in made and model.config is not None:
        made[CACHE] = _cache(made[CACHE])
    left = {n: a for n, a in probe.inputs.items() if n.split(".")[0] not in tree}
    return replace(probe, inputs=left, others={**probe.others, **made})


def _plant(tree: dict[str, Any], path: tuple[str, ...], array: Any, name: str) -> None:
    *above, last = path
    for step in above:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):
            raise ProbeError(f"Probe input {name!r}: {step!r} is an array already.")
    if last in tree:
        raise ProbeError(f"Probe input {name!r} was given, and so were arrays inside it.")
    tree[last] = array


def _grown(where: str, inside: Any) -> Any:
    """A list where all names are numbers, else a dict."""
    if not isinstance(inside, Mapping):
        return inside
    if not all(name.isdecimal() for name in inside):
        return {name: _grown(f"{where}.{name}", item) for name, item in inside.items()}
    places = {int(name): _grown(f"{where}.{name}", item) for name, item in inside.items()}
    gap = next((n for n in range(len(inside)) if n not in places), None)
    if gap is not None:
        raise ProbeError(f"The probe lacks {where}.{gap}, and has parts of {where!r} after it.")
    return [places[n] for n in range(len(inside))]


def _cache(layers: Any) -> Any:
    """Keys and values by layer, as transformers keeps them."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, layer in enumerate(layers if isinstance(layers, list) else [layers]):
        pair = list(layer.values()) if isinstance(layer, dict) else layer
        if isinstance(layer, dict) and {"key", "value"} == layer.keys():
            pair = [layer["key"], layer["value"]]
        if not isinstance(pair, list) or len(pair) != 2:
            raise ProbeError(
                f"{CACHE}.{number} is not a key and a value; name its arrays {CACHE}.0.key, "
                f"{CACHE}.0.value and so on, one pair a layer."
            )
        cache.update(*(torch.from_numpy(array.copy()) for array in pair), number)
    return cache
