"""A declared model, some of whose modules are put back into float."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..loaded import LoadedModel
from .in_torch import stored_in
from .rescaled import rescaled


class Restoring:
    """The declared model in float64, and the weights that its modules had."""

    def __init__(self, model: LoadedModel, declared: LoadedModel) -> None:
        wide = declared.at("fp64", "cpu")
        self.model = LoadedModel(wide, declared.label, blocks=declared.blocks)
        self._own = dict(model.at("fp32", "cpu").named_modules())
        self._parts = dict(wide.named_modules())

    @contextmanager
    def restored(self, paths: Iterable[str]) -> Iterator[None]:
        """Meanwhile these modules have the model's own weights, and do not round their inputs."""
        before = []
        try:
            for path in paths:
                part = self._parts[path]
                before.append((part, part.weight, part._forward_pre_hooks))
                # Scaled before it was rounded (rescaled.py), it is so in float, too.
                weight = getattr(part, "scaled_weight", self._own[path].weight)
                assert isinstance(weight, torch.Tensor)
                part.weight = nn.Parameter(weight.detach().double(), requires_grad=False)
                part._forward_pre_hooks = OrderedDict()
            yield
        finally:
            for part, weight, hooks in reversed(before):
                part.weight, part._forward_pre_hooks = weight, hooks


def in_float(quantised: nn.Module, model: LoadedModel, paths: Iterable[str]) -> nn.Module:
    """A copy of a quantised module in which some modules are the model's own."""
    made = copy.deepcopy(quantised)
    scaled = rescaled(model, quantised, stored_in(quantised)).weights
    for path in paths:
        above, _, name = path.rpartition(".")
        part = copy.deepcopy(model.module.get_submodule(path))
        if path in scaled:
            part.weight = nn.Parameter(torch.from_numpy(scaled[path]), requires_grad=False)
        setattr(made.get_submodule(above), name, part)
    return made
