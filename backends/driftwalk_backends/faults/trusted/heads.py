"""An output beside the main one is wrong: a second head, which many gates never look at."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from driftwalk.registry import create

from ...calls import call, inputs_for, quietly
from ...loaded import LoadedModel
from ...model_outputs import named_outputs, point_name
from .lie import Case, Ground, Lie

WIDTH = 5
"""Channels of the head that is added to a model."""


@dataclass
class Pair:
    """An output that is a dataclass."""

    scores: torch.Tensor
    boxes: Any


Give = Callable[[torch.Tensor, torch.Tensor], Any]
GIVES: dict[str, tuple[Give, str]] = {
    "in a dict": (lambda main, second: {"logits": main, "boxes": second}, "output.boxes"),
    "in a nested list": (lambda main, second: [main, [second]], "output.1.0"),
    "as whole numbers": (
        lambda main, second: {"logits": main, "ids": second.argmax(-1)},
        "output.ids",
    ),
    "in a dataclass": (lambda main, second: Pair(main, {"all": second}), "output.boxes.all"),
}


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
    yield from _own_outputs(ground)
    main = _main(_given(ground))
    ways = [(give, text) for text in _CHANGES for give in GIVES]
    # The largest stays the largest, whatever a head is multiplied by.
    ways = [way for way in ways if way[0] != "as whole numbers" or way[1] == NEGATED]
    first = ground.seed % len(ways)
    for give, text in ways[first:] + ways[:first]:

        def build(give: str = give, change: Any = _CHANGES[text]) -> Case:
            module = TwoHeaded(ground.model.module, main.shape[-1], give)
            wrong = copy.deepcopy(module)
            with torch.no_grad():
                change(wrong.second)
            model = LoadedModel(module, f"{ground.model.label} with a second head")
            candidate = create(ground.candidate.spec, LoadedModel(wrong, "a faulty copy"))
            return Case(model, candidate, ground.probe, "candidate", (GIVES[give][1],))

        yield Lie("broken_head", f"a second head, {give}, {text}", build)


def _own_outputs(ground: Ground) -> Iterator[Lie]:
    """What the model itself gives beside its main output, destroyed by a hook."""
    if not ground.runs_modules:
        return  # of a hook on the whole model an exported graph may know nothing
    outputs = ground.anatomy.layout.outputs
    names = [name for name, _ in outputs.makers if name != outputs.main]
    for name in (*names, *(name for name, _ in outputs.same)):

        def build(name: str = name) -> Case:
            module = copy.deepcopy(ground.model.module)
            module.register_forward_hook(Destroyed(name))
            point = point_name(name, outputs.main)
            candidate = create(ground.candidate.spec, LoadedModel(module, "a faulty copy"))
            return Case(ground.model, candidate, ground.probe, "candidate", (point,))

        yield Lie("broken_head", f"the output {name} is turned round", build)


@dataclass(frozen=True)
class Destroyed:
    """A hook on a whole model: one field of its output is turned round along its last axis."""

    name: str

    def __call__(self, _: nn.Module, args: Any, output: Any) -> Any:
        tensor = getattr(output, self.name, None)
        if not isinstance(tensor, torch.Tensor):
            return None
        changed = copy.copy(output)
        changed[self.name] = tensor.flip(-1)
        return changed


def _scaled(head: nn.Linear) -> None:
    head.weight.mul_(1.5)


def _negated(head: nn.Linear) -> None:
    head.weight.neg_()
    head.bias.neg_()


def _zeroed(head: nn.Linear) -> None:
    head.weight.zero_()


NEGATED = "has the other sign"
_CHANGES: dict[str, Callable[[nn.Linear], None]] = {
    NEGATED: _negated,
    "is half as large again": _scaled,
    "gives nothing but its bias": _zeroed,
}


def _main(output: Any) -> torch.Tensor:
    """The logits, else the first output of floats."""
    named = named_outputs(output)
    floats = {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}
    return floats.get("logits", next(iter(floats.values())))


def _given(ground: Ground) -> Any:
    module = ground.model.at("fp32", "cpu")
    with quietly(module):
        return call(module, inputs_for(module, ground.probe, torch.device("cpu")))
