"""A model that is not what it looks like: its mask, its dtypes, or an output beside the main one.

A mask may say the opposite of what it seems to, so that only padding would be compared. A module
may compute in other dtypes than meets the eye. A second head may be wrong that nobody looks at.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from driftwalk.dtypes import Array
from driftwalk.registry import create

from ...anatomy import Matrix
from ...calls import call, inputs_for, quietly
from ...loaded import LoadedModel
from ...model_outputs import named_outputs, point_name
from ...tensors import output_tensors, with_stream_output
from ..planning import inject
from .lie import Absent, Ground, Lie, Setup, Weighed, rotated

# ---- masks ----

MASK = "attention_mask"
SIZES = {"fp16": 0.1, "bf16": 0.5}
"""How much the fault changes a state, in formats in which 1 % may be noise."""
READINGS: dict[str, Callable[[Array], Array]] = {
    "1 where padding is": lambda mask: (mask == 0).astype(np.int64),
    "added to scores": lambda mask: np.where(mask == 0, -1e4, 0.0).astype(np.float32),
    "True where padding is": lambda mask: mask == 0,
    "kept": lambda mask: mask != 0,
}


class OtherMask(nn.Module):
    """A model whose mask is written in another way, as in a user's own module, and rewritten into
    its own inside."""

    def __init__(self, model: nn.Module, reading: str) -> None:
        super().__init__()
        self.model = model
        self.reading = reading

    def forward(self, **inputs: torch.Tensor) -> Any:
        mask = inputs[MASK]
        own = mask == 0 if self.reading != "kept" else mask != 0
        return call(self.model, inputs | {MASK: own.to(torch.int64)})


@dataclass(frozen=True, eq=False)
class OffAt:
    """A hook that changes what a block gives at some positions alone."""

    places: torch.Tensor
    factor: float

    def __call__(self, _: nn.Module, args: Any, output: Any) -> Any:
        tensor = output_tensors(output)[0]
        off = torch.where(self.places.to(tensor.device)[..., None], self.factor, 1.0)
        return with_stream_output(output, tensor * off.to(tensor.dtype))


def inverted_mask(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which a mask can be read.

    The fault is at real tokens and nowhere else, in the last block, after which no position looks
    at another.
    """
    given = ground.probe.inputs.get(MASK)
    if given is None:
        raise Absent(f"it takes no {MASK}")
    if given.ndim != 2 or (given != 0).all():
        raise Absent("nothing is padded in this probe")
    if not hasattr(ground.model.module, "config"):
        raise Absent("how it reads its mask is known of transformers models alone")
    stacks = ground.anatomy.layout.stacks
    if not stacks:
        raise Absent("it has no blocks")
    path = stacks[0].blocks[-1]
    point = stacks[0].layers[stacks[0].blocks.index(path)].name  # one block may be all layers
    size = SIZES.get(ground.dtype, 0.01)
    off = OffAt(torch.from_numpy(np.ascontiguousarray(given != 0)), 1 + size)

    def build(reading: str) -> Setup:
        module = OtherMask(ground.model.module, reading)
        wrong = copy.deepcopy(module)
        wrong.model.get_submodule(path).register_forward_hook(off)
        probe = replace(
            ground.probe, inputs={**ground.probe.inputs, MASK: READINGS[reading](given)}
        )
        model = LoadedModel(module, f"{ground.model.label} behind another mask")
        return Setup(model, ground.running(wrong), probe, "candidate", (point,))

    for reading in rotated(list(READINGS), ground.seed):
        text = f"a mask {reading}; the candidate: {path} is off by {size:.0%} at real tokens"
        yield Lie("inverted_mask", text, partial(build, reading))


# ---- dtypes: the candidate is a module with parts in another one ----

WAYS = ("coarse part", "overflow", "idle parameter", "rounding")
BEYOND = 2.0**20
"""Times what a hidden state usually is, and fp16 holds it no more; float32 does."""


def converted_dtype(ground: Ground) -> Iterator[Lie]:
    """In turn: the ways in which the dtype of a module can be taken for another."""
    if not ground.runs_modules:
        raise Absent("the candidate is a module that PyTorch runs as it is")
    # Each way in turn; one that this fault or model has no room for waits for the next.
    waiting = rotated(WAYS, ground.seed)
    for number in range(4 * len(WAYS)):
        weighed = ground.owed(f"converted_dtype|{number}", ("fp32",), first=0)
        ways = {name: (text, build) for name, text, build in _ways(ground, weighed, number)}
        name = next((name for name in waiting if name in ways), None)
        if name is not None:
            waiting.remove(name)
            waiting.append(name)
            yield Lie("converted_dtype", *ways[name])


def _ways(
    ground: Ground, weighed: Weighed, number: int
) -> Iterator[tuple[str, str, Callable[[], Setup]]]:
    """What can be done with this fault in this model, each in words."""
    blocks = ground.anatomy.blocks
    path = ground.random(f"converted_dtype|{number}").choice(list(blocks.values()))
    point = next(point for point, where in blocks.items() if where == path)
    fault = weighed.fault.description
    if coarse := next(_earlier_parts(ground, weighed), None):
        text = f"{coarse} of the candidate is in bf16, and in float32 behind it {fault}"
        yield "coarse part", text, partial(_part_in_bf16, ground, weighed, coarse)
    calls = ground.anatomy.matrices.get(point, ())[-2:]
    linked = len(calls) == 2 and calls[0].outputs == calls[1].inputs
    if linked and calls[0].path != calls[1].path:  # one takes what the other gives
        build = partial(_overflowing, ground, path, point, *calls)
        yield "overflow", f"{path} overflows in fp16", build
    text = f"a bf16 parameter that nothing uses; {fault}"
    yield "idle parameter", text, partial(_with_idle_parameter, ground, weighed)
    text = f"{path} has float32 weights and gives bf16 numbers"
    yield "rounding", text, partial(_rounding, ground, path, point)


def _earlier_parts(ground: Ground, weighed: Weighed) -> Iterator[str]:
    """Tables and blocks that work before the faulty layer alone."""
    anatomy, points = ground.anatomy, list(ground.anatomy.points)
    before = set(points[: points.index(weighed.right)])
    module = ground.model.module
    for path in (*(t.path for t in anatomy.tables), *dict.fromkeys(anatomy.blocks.values())):
        # By memory: a tied weight has one name here and another there.
        held = {id(parameter) for parameter in module.get_submodule(path).parameters()}
        names = [name for name, p in module.named_parameters() if id(p) in held]
        used = [set(anatomy.parameters.get(name, ())) for name in names]
        if used and all(at <= before for at in used):
            yield path


def _part_in_bf16(ground: Ground, weighed: Weighed, path: str) -> Setup:
    module = _in_dtype(inject(ground.model.module, weighed.fault), path, torch.bfloat16)
    return ground.setup(module, points=weighed.points)


def _with_idle_parameter(ground: Ground, weighed: Weighed) -> Setup:
    module = inject(ground.model.module, weighed.fault)
    idle = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16), requires_grad=False)
    module._parameters = {"idle": idle, **module._parameters}
    return ground.setup(module, points=weighed.points)


def _rounding(ground: Ground, path: str, point: str) -> Setup:
    """To bfloat16 and back: float32 by name alone."""
    module = copy.deepcopy(ground.model.module)
    module.get_submodule(path).register_forward_hook(
        lambda _, args, output: _cast(_cast(output, torch.bfloat16), torch.float32)
    )
    return ground.setup(module, points=(point,))


def _overflowing(ground: Ground, path: str, point: str, up: Matrix, down: Matrix) -> Setup:
    """A model with large numbers between two matrices, and a copy with that block in fp16."""
    model = copy.deepcopy(ground.model.module)
    with torch.no_grad():
        model.get_parameter(f"{up.path}.weight").mul_(BEYOND)
        model.get_parameter(f"{down.path}.weight").div_(BEYOND)
    loaded = LoadedModel(model, f"{ground.model.label} with large numbers inside")
    candidate = _in_dtype(copy.deepcopy(model), path, torch.float16)
    return Setup(loaded, candidate, ground.probe, "candidate", (point,), create("torch", loaded))


def _in_dtype(module: nn.Module, path: str, dtype: torch.dtype) -> nn.Module:
    """The module with one of its parts in a dtype, which takes and gives float32 by way of hooks,
    as most users mix dtypes."""
    part = module.get_submodule(path)
    for parameter in part.parameters():  # in place: a tied weight stays tied
        parameter.data = parameter.data.to(dtype)
    part.register_forward_pre_hook(
        lambda _, args, kwargs: _cast((args, kwargs), dtype), with_kwargs=True
    )
    part.register_forward_hook(lambda _, args, output: _cast(output, torch.float32))
    return module


def _cast(value: Any, dtype: torch.dtype) -> Any:
    def one(item: Any) -> Any:
        floats = isinstance(item, torch.Tensor) and item.is_floating_point()
        return item.to(dtype) if floats else item

    return tree_map(one, value)


# ---- heads ----

WIDTH = 5
"""Channels of the head that is added to a model."""


@dataclass
class ScoresAndBoxes:
    """An output that is a dataclass."""

    scores: torch.Tensor
    boxes: Any


GIVES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], str]] = {
    "in a dict": (lambda main, second: {"logits": main, "boxes": second}, "output.boxes"),
    "in a nested list": (lambda main, second: [main, [second]], "output.1.0"),
    "as whole numbers": (
        lambda main, second: {"logits": main, "ids": second.argmax(-1)},
        "output.ids",
    ),
    "in a dataclass": (
        lambda main, second: ScoresAndBoxes(main, {"all": second}),
        "output.boxes.all",
    ),
}
NEGATED = "has the other sign"
_FACTORS = {
    NEGATED: (-1.0, -1.0),
    "is half as large again": (1.5, 1.0),
    "gives nothing but its bias": (0.0, 1.0),
}
"""What the weights and the bias of a second head are multiplied by."""


class TwoHeaded(nn.Module):
    """A model with one more head, which reads its main output."""

    def __init__(self, model: nn.Module, channels: int, give: str) -> None:
        super().__init__()
        self.model = model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.second = nn.Linear(channels, WIDTH)
        self.give = give

    def forward(self, **inputs: torch.Tensor) -> Any:
        main = _main(call(self.model, inputs))
        return GIVES[self.give][0](main, self.second(main))


def broken_head(ground: Ground) -> Iterator[Lie]:
    """In turn: the model's own second outputs, and a second head in every kind of container."""
    if ground.runs_modules:  # of a hook on the whole model an exported graph may know nothing
        outputs = ground.anatomy.layout.outputs
        names = [name for name, _ in outputs.makers if name != outputs.main]
        for name in (*names, *(name for name, _ in outputs.same)):
            build = partial(_turned_round, ground, name)
            yield Lie("broken_head", f"the output {name} is turned round", build)
    module = ground.model.at("fp32", "cpu")
    with quietly(module):
        given = inputs_for(module, ground.probe, torch.device("cpu"))
        channels = _main(call(module, given)).shape[-1]
    ways = [(give, text) for text in _FACTORS for give in GIVES]
    # The largest stays the largest, whatever a head is multiplied by.
    ways = [way for way in ways if way[0] != "as whole numbers" or way[1] == NEGATED]
    for give, text in rotated(ways, ground.seed):
        build = partial(_with_second_head, ground, channels, give, text)
        yield Lie("broken_head", f"a second head, {give}, {text}", build)


def _with_second_head(ground: Ground, channels: int, give: str, text: str) -> Setup:
    module = TwoHeaded(ground.model.module, channels, give)
    wrong = copy.deepcopy(module)
    with torch.no_grad():
        for parameter, factor in zip(wrong.second.parameters(), _FACTORS[text], strict=True):
            parameter.mul_(factor)
    model = LoadedModel(module, f"{ground.model.label} with a second head")
    points = (GIVES[give][1],)
    return Setup(model, ground.running(wrong), ground.probe, "candidate", points)


def _turned_round(ground: Ground, name: str) -> Setup:
    """What the model itself gives beside its main output, turned round along its last axis."""

    def turn(_: nn.Module, args: Any, output: Any) -> Any:
        tensor = getattr(output, name, None)
        if not isinstance(tensor, torch.Tensor):
            return None
        changed = copy.copy(output)
        changed[name] = tensor.flip(-1)
        return changed

    module = copy.deepcopy(ground.model.module)
    module.register_forward_hook(turn)
    point = point_name(name, ground.anatomy.layout.outputs.main)
    return ground.setup(ground.running(module), points=(point,))


def _main(output: Any) -> torch.Tensor:
    """The logits, else the first output of floats."""
    named = named_outputs(output)
    floats = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
    return floats.get("logits", next(iter(floats.values())))
