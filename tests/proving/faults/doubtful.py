"""What nobody can decide: the model itself gives no answer that holds."""

from __future__ import annotations

import torch

from ..case import WHOLE, Done, Site, family
from ..places import copied
from ..spots import matrices


@family("lie", "undecidable", WHOLE, "always")
def reference_not_finite(site: Site) -> Done:
    """The model gives NaN: one of its weights is infinite, on both sides"""
    name = site.choose(matrices(site))
    with torch.no_grad():
        site.module.get_parameter(name).fill_(float("inf"))
    return Done(copied(site.module), f"{name} is infinite on both sides", reference=site.module)
