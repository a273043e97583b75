"""A program as it declares itself: in float, rounded where it says so.

Where all that it rounds are weights and the inputs of their products, the model itself can do the
same, and is what the program declares. Otherwise the program is: in float64, and rounded between
its products, too. That it is the model but for its roundings is then looked at on its own: with
the model's weights and nothing rounded it must give the model's states, in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from driftwalk.formats import Declared, Misstored
from driftwalk.states import Probe

from ..calls import call, inputs_for
from ..formats.constants import PROGRAM_APART, PROGRAM_BIAS_TIE
from ..formats.declared import declared_by
from ..loaded import LoadedModel
from ..tensors import output_tensors
from ..watching import hooked
from ..widening import WidenedCasts
from .nested import DECLARED, UNROUNDED, Part, Program
from .stored import Found

ELSEWHERE = "{} is another computation than the model's, with nothing rounded: off by {:.2g}"
BIAS = "the bias of {} is no rounding of the model's"


class ProgramModel(LoadedModel):
    """A program in float: what it computes is in no package's code, and is stored nowhere."""

    @property
    def has_known_code(self) -> bool:
        return False


def honest(
    program: Program, found: Found, model: LoadedModel, probe: Probe | None
) -> LoadedModel | None:
    """What it should compute; None where its weights are not the model's."""
    made = declared_by(program, model)
    if made is None and found.weights:
        return None
    if not found.between and not found.vectors:
        return made
    says = made.declared if made is not None else None
    says = says or Declared((), tips=True)
    weights = {} if made is None else dict(made.module.named_modules())
    rounded = _with(program, found, weights, DECLARED)
    wrong = {**says.wrong, **_wrong_biases(program, found, model)}
    own = dict(model.at("fp32", "cpu").named_modules())
    if probe is not None:
        wrong |= _elsewhere(_with(program, found, own, UNROUNDED), model, probe)
    says = replace(says, tips=True, wrong=wrong, saved={})
    return ProgramModel(rounded, f"{model.label}, quantised", blocks=model.blocks, declared=says)


def _with(program: Program, found: Found, parts: dict[str, nn.Module], mode: str) -> Program:
    """A copy in float, with the weights of other modules in the place of those it stores."""
    made = copy.deepcopy(program)
    for part in made.modules():
        if isinstance(part, Part):
            part.mode = mode
            vars(part).pop("stored_weight", None)
            vars(part).pop("undeclared", None)
    for name, path in found.weights.items():
        part = made.get_submodule(path)
        assert isinstance(part, Part)
        part.put(name, "declared_weight", parts[path].weight)
    for name, path in found.vectors.items() if mode == UNROUNDED else ():
        bias = getattr(parts.get(path), "bias", None)
        part = made.get_submodule(path)
        if isinstance(bias, torch.Tensor) and isinstance(part, Part):
            part.put(name, "own_bias", bias)
    return made


def _wrong_biases(program: Program, found: Found, model: LoadedModel) -> dict[str, Misstored]:
    """Rounded biases that are farther than half a step from the model's."""
    own = dict(model.at("fp32", "cpu").named_modules())
    wrong = {}
    for name, path in found.vectors.items():
        part, bias = program.get_submodule(path), getattr(own.get(path), "bias", None)
        if not isinstance(part, Part) or not isinstance(bias, torch.Tensor):
            continue
        op = program.plan.late[name]
        values, step = part.constant(op).double(), part.step_of(op)
        off = (values - bias.detach().double()).abs() / step
        if values.shape != bias.shape or not bool((off <= 0.5 + PROGRAM_BIAS_TIE).all()):
            wrong[path] = Misstored(BIAS.format(path), float(off.max()) * 2)
    return wrong


def _elsewhere(program: Program, model: LoadedModel, probe: Probe) -> dict[str, Misstored]:
    """The first module that, with nothing rounded, gives something else than the model's."""
    wide = model.at("fp64", "cpu")
    other = ProgramModel(program, model.label).at("fp64", "cpu")
    theirs = dict(_outputs(wide, probe))
    for key, tensors in _outputs(other, probe):
        mine = theirs.get(key)
        if mine is None:
            continue
        off = min(
            (_off(one, mine[0]) for one in tensors if one.shape == mine[0].shape), default=0.0
        )
        if not off <= PROGRAM_APART:
            path = key[0]
            return {
                path: Misstored(ELSEWHERE.format(path or "the model", off), off / PROGRAM_APART)
            }
    return {}


def _outputs(
    module: nn.Module, probe: Probe
) -> Iterator[tuple[tuple[str, int], list[torch.Tensor]]]:
    """By module and call, in the order in which they end: the floats that it gives."""
    seen: list[tuple[tuple[str, int], list[torch.Tensor]]] = []
    calls: dict[str, int] = {}

    def noting(path: str) -> Any:
        def hook(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            number = calls[path] = calls.get(path, -1) + 1
            given = output_tensors(output)
            if given:
                seen.append(((path, number), [t.detach().clone() for t in given]))

        return hook

    hooks = [(part, None, noting(path)) for path, part in module.named_modules()]
    with hooked(hooks), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        inputs = inputs_for(module, probe, "cpu")
        with WidenedCasts():
            call(module, inputs)
    return iter(seen)


def _off(a: torch.Tensor, b: torch.Tensor) -> float:
    size = float(b.double().norm())
    off = float((a.double() - b.double()).norm())
    return off / size if size > 0 else (0.0 if off == 0 else math.inf)
