"""Weights that were scaled before they were rounded, as AWQ and SmoothQuant do it.

    norm.weight / s,  W * s          a norm's channels, and the inputs of the layers behind it
    W * r,            W2 / r         a layer's outputs, and the inputs of the next one

The model computes the same, and its rounded weights are others. The factors of a norm are told from
its weights; those between two layers are fitted to the stored numbers. They are believed only where
each layer of a block, so scaled and in float, still gives what the model's own does.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from driftwalk.dtypes import Array, Float64
from driftwalk.errors import DriftwalkError

from ..calls import call, quietly
from ..loaded import LoadedModel
from .constants import (
    BLOCK_UNCHANGED,
    FACTOR_BELIEVED,
    FACTOR_ERROR,
    FACTOR_SURE,
    LEAST_FACTOR,
    NORM_CHANGED,
)
from .rounded import RoundedWeight

_ONE_MORE = " + 1"
"""Behind the path of a norm: its channels are times one more than its weight (Gemma)."""
_BLOCK = re.compile(r"(.*?\.\d+)\.")


@dataclass(frozen=True, eq=False)
class Rescaled:
    """What the model's own tensors become, by name; all the others stay."""

    weights: Mapping[str, Array] = field(default_factory=dict)
    """By the path of a stored weight: the model's own, scaled."""
    slack: Mapping[str, float] = field(default_factory=dict)
    outputs: Mapping[str, Float64] = field(default_factory=dict)
    """By the path of every stored weight: what its outputs were multiplied with."""
    vectors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """By parameter: norms and biases as the artefact has them."""


def rescaled(model: LoadedModel, module: nn.Module, weights: Sequence[RoundedWeight]) -> Rescaled:
    """The factors that explain an artefact's weights; none where the model's own do."""
    own = model.at("fp32", "cpu")
    blocks: dict[str, list[RoundedWeight]] = {}
    for one in weights:
        if match := _BLOCK.match(one.path):
            blocks.setdefault(match[1], []).append(one)
    found = {}
    for path, members in blocks.items():
        if any(not _has(own, one.path) for one in members):
            continue
        if vectors := dict(_changed(own.get_submodule(path), module.get_submodule(path))):
            made = _Block(path, own, module, vectors, members).explained()
            if made.weights:
                found[path] = made
    kept = _kept(model, own, found) if found else []
    return Rescaled(
        {path: one for made in kept for path, one in made.weights.items()},
        {path: one for made in kept for path, one in made.slack.items()},
        {path: one for made in kept for path, one in made.outputs.items()},
        {name: one for made in kept for name, one in made.vectors.items()},
    )


def _has(module: nn.Module, path: str) -> bool:
    try:
        return isinstance(getattr(module.get_submodule(path), "weight", None), nn.Parameter)
    except AttributeError:
        return False


def _changed(own: nn.Module, other: nn.Module) -> Iterator[tuple[str, Float64]]:
    """By the path of a norm: what its channels are divided by, where it is another's."""
    theirs = dict(other.named_parameters())
    for name, mine in own.named_parameters():
        path, _, last = name.rpartition(".")
        there = theirs.get(name)
        if mine.ndim != 1 or last != "weight" or there is None or there.shape != mine.shape:
            continue
        a, b = (one.detach().double().numpy() for one in (mine, there))
        if np.allclose(a, b, rtol=NORM_CHANGED, atol=0):
            continue
        if (a * b > 0).all():
            yield path, a / b
        if ((1 + a) * (1 + b) > 0).all():
            yield f"{path}{_ONE_MORE}", (1 + a) / (1 + b)


class _Block:
    """Its stored weights, and the factors that may explain each."""

    def __init__(
        self,
        path: str,
        own: nn.Module,
        other: nn.Module,
        norms: Mapping[str, Float64],
        members: Sequence[RoundedWeight],
    ) -> None:
        self._path, self._own, self._other = path, own, other
        self._norms = {f"{path}.{name}": factor for name, factor in norms.items()}
        self._fits = [_Fit(one, own.get_submodule(one.path)) for one in members]

    def explained(self) -> Rescaled:
        used: set[str] = set()
        for fit in self._fits:
            used |= fit.try_inputs(self._norms)
        for behind in self._fits:
            used |= behind.try_behind([one for one in self._fits if one is not behind])
        scaled = [fit for fit in self._fits if fit.is_scaled]
        return Rescaled(
            {fit.stored.path: fit.target for fit in scaled},
            {fit.stored.path: fit.slack for fit in scaled},
            {fit.stored.path: fit.outputs for fit in self._fits},
            dict(self._vectors(used)),
        )

    def _vectors(self, used: set[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for path in used:
            part = self._other.get_submodule(path)
            for name in ("weight", "bias"):
                value = part._parameters.get(name)
                if value is not None and value.ndim == 1:
                    yield f"{path}.{name}", value.detach().float()


class _Fit:
    """The model's own weight, times factors of its outputs and inputs, beside the stored one."""

    def __init__(self, stored: RoundedWeight, part: nn.Module) -> None:
        self.stored = stored
        weight: Any = part.weight
        self._axis = 0 if type(part).__name__ == "Conv1D" else 1  # that of the inputs
        own, values = weight.detach().double().numpy(), stored.values
        inside = stored.inside
        turned = self._axis == 0
        self._own = own.T if turned else own
        self._values, self._inside = (one.T if turned else one for one in (values, inside))
        self.outputs, self._inputs = (np.ones(n) for n in self._own.shape)
        self.slack = 0.0

    @property
    def is_scaled(self) -> bool:
        return bool((self.outputs != 1).any() or (self._inputs != 1).any())

    @property
    def target(self) -> Array:
        product = self._own * self.outputs[:, None] * self._inputs
        made: Array = (product.T if self._axis == 0 else product).astype(np.float32)
        return made

    def try_inputs(self, factors: Mapping[str, Float64]) -> set[str]:
        """Whose factors explain its inputs best, if any's do."""
        known = {k: v for k, v in factors.items() if len(v) == self._own.shape[1]}
        left = {name: self._left(factor) for name, factor in known.items()}
        best = min(left, key=left.__getitem__, default="")
        if not best or left[best] > FACTOR_BELIEVED * self._left(np.ones(self._own.shape[1])):
            return set()
        self._inputs = known[best]
        return {best.removesuffix(_ONE_MORE)}

    def try_behind(self, before: Sequence[_Fit]) -> set[str]:
        """The layer whose outputs it takes back, if there is one; both are scaled then."""
        if (self._inputs != 1).any():
            return set()
        plain = self._left(np.ones(self._own.shape[1]))
        own, error = self._columns()
        for one in before:
            outputs, off = one._rows()
            if len(outputs) != len(own) or (one.outputs != 1).any():
                continue
            # Two measurements of the same factors: each counts by how sure it is.
            trust = error**-2 / (error**-2 + off**-2)
            both = np.exp(trust * np.log(own) - (1 - trust) * np.log(outputs))
            apart = np.abs(np.log(own) + np.log(outputs))
            sure = np.median(apart / np.hypot(error, off)) < FACTOR_SURE
            if sure and self._left(both) < FACTOR_BELIEVED * plain:
                self._inputs, one.outputs = both, 1 / both
                least = FACTOR_SURE * float(np.max(1 / np.hypot(1 / error, 1 / off)))
                self.slack, one.slack = self.slack + least, one.slack + least
                return {one.stored.path}
        return set()

    def _left(self, inputs: Float64) -> float:
        """What is not explained, with whatever factors its outputs may have."""
        scaled = self._own * inputs
        rows, _ = _fitted(scaled, self._values, self._inside)
        left = np.where(self._inside, self._values - rows[:, None] * scaled, 0.0)
        return float(np.linalg.norm(left))

    def _rows(self) -> tuple[Float64, Float64]:
        return _fitted(self._own * self._inputs, self._values, self._inside)

    def _columns(self) -> tuple[Float64, Float64]:
        return _fitted(self._own.T, self._values.T, self._inside.T)


def _fitted(own: Float64, values: Float64, inside: Array) -> tuple[Float64, Float64]:
    """A factor for each row, by least squares, and its relative standard error."""
    x, y = np.where(inside, own, 0.0), np.where(inside, values, 0.0)
    size = np.maximum((x * x).sum(1), 1e-300)
    factor = (x * y).sum(1) / size
    left = np.square(y - factor[:, None] * x).sum(1) / np.maximum(inside.sum(1) - 1, 1)
    usable = factor > LEAST_FACTOR
    factor = np.where(usable, factor, 1.0)
    return factor, np.where(usable, np.sqrt(left / size) / factor, 1.0) + FACTOR_ERROR


def _kept(model: LoadedModel, own: nn.Module, found: Mapping[str, Rescaled]) -> list[Rescaled]:
    """Those whose layers, scaled and in float, compute what the model's own do."""
    from ..probes import make_probe

    kept: list[Rescaled] = []

    def compared(path: str, given: dict[str, torch.Tensor]) -> Any:
        def hook(part: nn.Module, args: Any, keywords: Any, output: Any) -> None:
            copied, again = _scaled(part, path, found[path]), dict[str, torch.Tensor]()
            with _watched(copied, path, found[path].outputs, again):
                copied(*args, **keywords)
            if all(
                _apart(given[k], again[k], found[path].outputs[k]) < BLOCK_UNCHANGED for k in given
            ):
                kept.append(found[path])

        return hook

    with ExitStack() as stack, torch.no_grad(), quietly(own):
        for path, made in found.items():
            given: dict[str, torch.Tensor] = {}
            stack.enter_context(_watched(own, "", made.outputs, given))
            part = own.get_submodule(path)
            hook = part.register_forward_hook(compared(path, given), with_kwargs=True)
            stack.callback(hook.remove)
        try:
            call(own, model.inputs(own, make_probe(model), "cpu"))
        except DriftwalkError:  # no probe can be made: nothing is known
            return []
    return kept


@contextmanager
def _watched(
    module: nn.Module, above: str, paths: Iterable[str], given: dict[str, torch.Tensor]
) -> Iterator[None]:
    """Meanwhile what these layers give is put there; the module is itself at a path."""

    def note(path: str) -> Any:
        def hook(part: nn.Module, args: Any, output: torch.Tensor) -> None:
            given[path] = output.detach().double()

        return hook

    hooks = []
    try:
        for path in paths:
            part = module.get_submodule(path[len(above) + 1 if above else 0 :])
            hooks.append(part.register_forward_hook(note(path)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _scaled(part: nn.Module, path: str, made: Rescaled) -> nn.Module:
    copied = copy.deepcopy(part)
    for inner in copied.modules():
        inner._forward_hooks.clear()
    values = {f"{name}.weight": torch.from_numpy(one) for name, one in made.weights.items()}
    with torch.no_grad():
        for name, one in (values | dict(made.vectors)).items():
            copied.get_parameter(name.removeprefix(f"{path}.")).copy_(one)
    return copied


def _apart(own: torch.Tensor, other: torch.Tensor, factors: Float64) -> float:
    wanted = own * torch.from_numpy(factors)
    return float((wanted - other).norm() / wanted.norm().clamp(min=1e-30))
