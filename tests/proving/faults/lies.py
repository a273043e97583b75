"""Lies: candidates that are right for a while, or wrong in one place of their outputs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..case import GRAPHS, HALVES, MANY, WHOLE, Done, NoPlace, Site, family
from ..places import tensors
from ..spots import LIVE, calls, shown, with_first, wrapped
from .arithmetic import layers

CALLS = ("fp32", "generate", "set", "module")
BATCHED = (*WHOLE, *HALVES, *GRAPHS, "compare", "set", "pair", "module")
EVERYWHERE = (*WHOLE, *HALVES, *GRAPHS, *MANY)


def _by_count(site: Site, wrong: Callable[[int], bool], says: str) -> Done:
    """A layer whose output is 5% off in some of its calls, which it counts."""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        count = vars(part)["_calls"] = vars(part).get("_calls", 0) + 1
        factor = 1.05 if wrong(count) else 1.0
        return with_first(forward(*args, **kwargs), lambda y: y * factor)

    found = calls(site)
    path = site.choose([path for path in layers(site) if found[path].count == 1])
    return wrapped(site, path, around, says)


@family("lie", "unsteady", CALLS)
@shown
def right_at_first(site: Site) -> Done:
    """One layer is right in its first call and 5% off in all others"""
    return _by_count(site, lambda count: count > 1, "is right in its first call alone")


@family("lie", "unsteady", CALLS)
@shown
def wrong_at_first(site: Site) -> Done:
    """One layer is 5% off in its first call and right in all others"""
    return _by_count(site, lambda count: count == 1, "is wrong in its first call alone")


@family("lie", "unsteady", CALLS)
@shown
def wrong_at_every_other_call(site: Site) -> Done:
    """One layer is right in odd calls and 5% off in even ones"""
    return _by_count(site, lambda count: count % 2 == 0, "is wrong in every other call")


@family("lie", "unsteady", CALLS)
@shown
def left_over_from_last_run(site: Site) -> Done:
    """One layer adds a twentieth of what it gave in the run before"""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        def change(y: torch.Tensor) -> torch.Tensor:
            before = vars(part).get("_before")
            vars(part)["_before"] = y.detach().clone()
            fits = before is not None and before.shape == y.shape
            return y + 0.05 * before.to(y) if fits else y

        return with_first(forward(*args, **kwargs), change)

    path = site.choose(layers(site))
    return wrapped(site, path, around, "adds a part of what it gave before")


@family("lie", "unsteady", LIVE)
@shown
def right_when_watched(site: Site) -> Done:
    """One layer is 5% off unless a hook is on it or inside it"""

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        watched = any(p._forward_hooks or p._forward_pre_hooks for p in part.modules())
        factor = 1.0 if watched else 1.05
        return with_first(forward(*args, **kwargs), lambda y: y * factor)

    return wrapped(site, site.choose(layers(site)), around, "is right when it is watched")


# ---- in one place of an output ----


def _in_part(site: Site, axis: int, index: int, says: str, path: str = "") -> Done:
    """A layer whose output is 5% off at one index of an axis."""

    def change(y: torch.Tensor) -> torch.Tensor:
        size = y.shape[axis]
        at = torch.arange(size, device=y.device) == (index % size if index < 0 else index)
        shape = [1] * y.ndim
        shape[axis] = size
        return torch.where(at.view(shape), y * 1.05, y)

    def around(part: Any, forward: Any, *args: Any, **kwargs: Any) -> Any:
        return with_first(forward(*args, **kwargs), change)

    return wrapped(site, path or site.choose(layers(site)), around, says)


def _with_rows(site: Site) -> tuple[list[str], int]:
    """Layers whose outputs have the rows of the batch on their first axis; how many rows."""
    rows = {value.shape[0] for value in tensors(site.inputs).values() if value.ndim > 1}
    if len(rows) != 1 or rows == {1}:
        raise NoPlace
    count = rows.pop()
    found = calls(site)
    fit = [p for p in layers(site) if found[p].main.ndim > 1 and found[p].main.shape[0] == count]
    return fit, count


@family("lie", "fault", BATCHED)
@shown
def wrong_in_one_row(site: Site) -> Done:
    """One layer is 5% off in one row of the batch"""
    paths, count = _with_rows(site)
    row = site.rng.randrange(count)
    return _in_part(site, 0, row, f"is wrong in row {row}", site.choose(paths))


@family("lie", "fault", BATCHED)
@shown
def wrong_in_padded_row(site: Site) -> Done:
    """One layer is 5% off in a row of the batch that has padding, and nowhere else"""
    paths, _ = _with_rows(site)
    mask = tensors(site.inputs).get("attention_mask")
    if mask is None or mask.ndim != 2:
        raise NoPlace
    padded = [row for row in range(mask.shape[0]) if not bool(mask[row].all())]
    row = site.choose(padded)
    return _in_part(site, 0, row, f"is wrong in the padded row {row}", site.choose(paths))


@family("lie", "fault", EVERYWHERE)
@shown
def wrong_at_last_position(site: Site) -> Done:
    """One layer is 5% off at the last position alone"""
    found = calls(site)
    paths = [p for p in layers(site) if found[p].main.ndim == 3 and found[p].main.shape[1] > 1]
    return _in_part(site, 1, -1, "is wrong at the last position", site.choose(paths))


@family("lie", "fault", EVERYWHERE)
@shown
def wrong_in_one_channel(site: Site) -> Done:
    """One layer is 5% off in one channel"""
    found = calls(site)
    path = site.choose(layers(site))
    output = found[path].main
    axis = 1 if output.ndim == 4 else output.ndim - 1
    channel = site.rng.randrange(output.shape[axis])
    return _in_part(site, axis, channel, f"is wrong in channel {channel}", path)
