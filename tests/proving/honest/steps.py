"""Honest families of models that round to steps themselves, as trained for integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from ..case import WHOLE, Done, NoPlace, Site, family
from ..places import copied, inputs_first, run, wrap
from .rewrites import hidden_units_permuted
from .wiring import matrix, own_products, used

Tensor = torch.Tensor


def _fits(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0


def _paths(site: Site) -> list[str]:
    """Products that run and share no weight."""
    return used(site, own_products(site.module))


def quantised_in_steps(x: Tensor, scale: float, most: int) -> Tensor:
    """Rounded to steps, kept as floats: what training for integers does."""
    return torch.fake_quantize_per_tensor_affine(x, scale, 0, -most, most)


def _trained_for_integers(module: nn.Module, site: Site, inputs: bool) -> None:
    """Products whose weights, and inputs where asked for, are rounded to steps in each run."""
    sizes: dict[str, float] = {}

    def note(path: str, x: Tensor) -> None:
        sizes[path] = max(sizes.get(path, 0.0), float(x.abs().max()))

    if any(isinstance(part, nn.TransformerEncoderLayer) for part in module.modules()):
        raise NoPlace  # its fused kernel does not call its products
    paths = _paths(site)
    if not paths:
        raise NoPlace
    handles = [
        module.get_submodule(path).register_forward_pre_hook(
            lambda _, taken, path=path: note(path, taken[0])
        )
        for path in paths
    ]
    run(module, site.inputs)
    for handle in handles:
        handle.remove()
    for path in paths:
        part = module.get_submodule(path)
        scale, step = float(matrix(part).abs().max()) / 127, sizes[path] / 127
        if not _fits(scale) or not _fits(step):
            continue

        def around(
            self: nn.Module,
            _: Callable[..., Any],
            x: Tensor,
            scale: float = scale,
            step: float = step,
        ) -> Tensor:
            stored: Tensor = self.weight  # type: ignore[assignment]
            weight = quantised_in_steps(stored.T if inputs_first(self) else stored, scale, 127)
            given = quantised_in_steps(x, step, 127) if inputs else x
            return F.linear(given, weight, self.bias)  # type: ignore[arg-type]

        wrap(part, around)


@family("machine", "honest", (*WHOLE, "compare", "set", "module"))
def trained_for_integers(site: Site) -> Done:
    """A model whose products round weights and inputs to steps of eight bits, and a copy of it."""
    reference = copied(site.module)
    _trained_for_integers(reference, site, inputs=True)
    return Done(copied(reference), "rounds to steps on both sides", reference=reference)


@family("machine", "honest", (*WHOLE, "compare", "set"))
def trained_for_integers_and_permuted(site: Site) -> Done:
    """A model whose products round weights to steps, and one with its hidden units permuted."""
    done = hidden_units_permuted(site)
    assert isinstance(done.candidate, nn.Module)
    reference, candidate = copied(site.module), done.candidate
    for module in (reference, candidate):
        _trained_for_integers(module, site, inputs=False)
    return Done(candidate, f"rounds to steps on both sides, {done.what}", reference=reference)


@family("machine", "honest", (*WHOLE, "compare", "set", "module"))
def trained_for_integers_and_stored(site: Site) -> Done:
    """Weights rounded to steps in each run, against weights that are stored so."""
    reference, candidate = copied(site.module), copied(site.module)
    _trained_for_integers(reference, site, inputs=False)
    with torch.no_grad():
        paths = _paths(site)
        for path in paths:
            weight = matrix(candidate.get_submodule(path))
            scale = float(weight.abs().max()) / 127
            if _fits(scale):
                weight.copy_(quantised_in_steps(weight, scale, 127))
    return Done(candidate, "steps are stored", reference=reference)
