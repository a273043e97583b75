"""Modules that compute in other dtypes than meets the eye; the candidate is such a module.

A part in another dtype takes and gives float32 by way of hooks, which is how most users mix.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from driftwalk.registry import create

from ...anatomy import Matrix
from ...loaded import LoadedModel
from ..planning import inject
from .lie import UNSEEN, Absent, Case, Ground, Lie, Weighed, placed

WAYS = ("coarse part", "overflow", "idle parameter", "rounding")
Way = tuple[str, str, Callable[[], Case]]
BEYOND = 2.0**20
"""Times what a hidden state usually is, and fp16 holds it no more; float32 does."""


def converted_dtype(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which the dtype of a module can be taken for another."""
    if not ground.runs_modules:
        raise Absent("the candidate is a module that PyTorch runs as it is")
    # Each way in turn; one that this fault or model has no room for waits for the next.
    waiting = list(WAYS[ground.seed % len(WAYS) :] + WAYS[: ground.seed % len(WAYS)])
    for number in range(4 * len(WAYS)):
        weighed = ground.owed(f"converted_dtype|{number}", ("fp32",), first=0)
        if weighed is None:
            raise Absent(UNSEEN)
        ways = {name: (text, build) for name, text, build in _ways(ground, weighed, number)}
        name = next((name for name in waiting if name in ways), None)
        if name is not None:
            waiting.remove(name)
            waiting.append(name)
            yield Lie("converted_dtype", *ways[name])


def _ways(ground: Ground, weighed: Weighed, number: int) -> Iterator[Way]:
    """What can be done with this fault in this model, each in words."""
    blocks = ground.anatomy.blocks
    path = ground.random(f"converted_dtype|{number}").choice(list(blocks.values()))
    first = next(point for point, where in blocks.items() if where == path)
    fault = weighed.fault.description
    if coarse := next(_other_parts(ground, weighed), None):
        text = f"{coarse} of the candidate is in bf16, and in float32 behind it {fault}"
        yield "coarse part", text, lambda: _part_in_bf16(ground, weighed, coarse)
    if pair := _pair(ground, first):
        text = f"{path} overflows in fp16"
        yield "overflow", text, lambda: _overflowing(ground, path, first, pair)
    text = f"a bf16 parameter that nothing uses; {fault}"
    yield "idle parameter", text, lambda: _with_idle_parameter(ground, weighed)
    text = f"{path} has float32 weights and gives bf16 numbers"
    yield "rounding", text, lambda: _rounding(ground, path, first)


def _other_parts(ground: Ground, weighed: Weighed) -> Iterator[str]:
    """Tables and blocks that work before the faulty layer alone."""
    anatomy, points = ground.anatomy, list(ground.anatomy.points)
    before = set(points[: points.index(weighed.right)])
    parts = [table.path for table in anatomy.tables] + list(dict.fromkeys(anatomy.blocks.values()))
    for path in parts:
        part = ground.model.module.get_submodule(path)
        held = {id(parameter) for parameter in part.parameters()}
        # By memory: a tied weight has one name here and another there.
        used = [
            anatomy.parameters.get(name, ())
            for name, parameter in ground.model.module.named_parameters()
            if id(parameter) in held
        ]
        if used and all(set(at) <= before for at in used):
            yield path


def _part_in_bf16(ground: Ground, weighed: Weighed, path: str) -> Case:
    module = in_dtype(inject(ground.model.module, weighed.fault), path, torch.bfloat16)
    return Case(ground.model, module, ground.probe, "candidate", placed(weighed))


def _with_idle_parameter(ground: Ground, weighed: Weighed) -> Case:
    module = inject(ground.model.module, weighed.fault)
    idle = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16), requires_grad=False)
    module._parameters = {"idle": idle, **module._parameters}
    return Case(ground.model, module, ground.probe, "candidate", placed(weighed))


def _rounding(ground: Ground, path: str, point: str) -> Case:
    module = copy.deepcopy(ground.model.module)
    module.get_submodule(path).register_forward_hook(_narrowed)
    return Case(ground.model, module, ground.probe, "candidate", (point,))


def _narrowed(_: nn.Module, args: Any, output: Any) -> Any:
    """To bfloat16 and back: float32 by name alone."""
    return _cast(_cast(output, torch.bfloat16), torch.float32)


def _pair(ground: Ground, point: str) -> tuple[Matrix, Matrix] | None:
    """The last two matrices of a block, where one takes what the other gives."""
    calls = ground.anatomy.matrices.get(point, ())
    if len(calls) < 2 or calls[-2].outputs != calls[-1].inputs or calls[-2].path == calls[-1].path:
        return None
    return calls[-2], calls[-1]


def _overflowing(ground: Ground, path: str, point: str, pair: tuple[Matrix, Matrix]) -> Case:
    """A model with large numbers between two matrices, and a copy with that block in fp16."""
    model = copy.deepcopy(ground.model.module)
    with torch.no_grad():
        model.get_parameter(f"{pair[0].path}.weight").mul_(BEYOND)
        model.get_parameter(f"{pair[1].path}.weight").div_(BEYOND)
    loaded = LoadedModel(model, f"{ground.model.label} with large numbers inside")
    candidate = in_dtype(copy.deepcopy(model), path, torch.float16)
    return Case(loaded, candidate, ground.probe, "candidate", (point,), create("torch", loaded))


def in_dtype(module: nn.Module, path: str, dtype: torch.dtype) -> nn.Module:
    """The module with one of its parts in a dtype, which takes and gives float32."""
    part = module.get_submodule(path)
    for parameter in part.parameters():  # in place: a tied weight stays tied
        parameter.data = parameter.data.to(dtype)

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return _cast((args, kwargs), dtype)

    part.register_forward_pre_hook(before, with_kwargs=True)
    part.register_forward_hook(lambda _, args, output: _cast(output, torch.float32))
    return module


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def one(item: Any) -> Any:
        floats = isinstance(item, torch.Tensor) and item.is_floating_point()
        return item.to(dtype) if floats else item

    return tree_map(one, value)
